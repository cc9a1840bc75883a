"""Ratings of films from few parameters: the MovieLens-1M table of Anchor & Transform."""
