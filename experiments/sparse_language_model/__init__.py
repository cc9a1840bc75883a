"""Language models whose next words have sparse probabilities, and text drawn from them."""
