"""Linear output layer fused with its entmax loss, for large numbers of classes."""
