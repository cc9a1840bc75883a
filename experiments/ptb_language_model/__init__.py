"""Language models whose embedding table is made of few anchors."""
