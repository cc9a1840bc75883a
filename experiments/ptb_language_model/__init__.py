"""Language models whose table of words is made of few anchors."""
