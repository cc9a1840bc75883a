"""A game of two agents that must agree on what 256 symbols mean."""
