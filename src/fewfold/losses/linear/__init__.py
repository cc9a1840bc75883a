"""The output layer fused with its loss, for large numbers of classes."""
