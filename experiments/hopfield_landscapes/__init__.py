"""Basins of attraction, energies and metastable states of associative memories."""
