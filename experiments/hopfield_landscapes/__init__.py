"""Where associative memories lead: basins, energies, and states between patterns."""
