"""A signalling game of two agents with 256 symbols."""
