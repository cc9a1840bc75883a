"""The signalling game with messages that are neither one symbol nor all of them."""
