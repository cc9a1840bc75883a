"""Translation with sparse attention and sparse output probabilities."""
