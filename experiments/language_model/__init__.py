"""A word-level language model whose softmax is sampled."""
