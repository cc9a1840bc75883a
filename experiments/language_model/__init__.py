"""A word-level language model trained with sampled softmax."""
