"""Multiple instance learning: bags of digits and of regions of photographs."""
