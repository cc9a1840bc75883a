"""Known relations between objects, as constraints on anchor tables."""
