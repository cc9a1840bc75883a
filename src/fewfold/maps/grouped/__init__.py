"""Maps whose probabilities are equal over groups of entries."""
