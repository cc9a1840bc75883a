"""The signalling game with messages that are sparse mixtures of symbols."""
