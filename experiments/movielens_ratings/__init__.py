"""Rating prediction with few parameters: the MovieLens-1M table of Anchor & Transform."""
