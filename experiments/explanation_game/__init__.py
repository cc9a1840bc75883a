"""The explanation game: a layperson guesses the decision of a classifier from a few words."""
