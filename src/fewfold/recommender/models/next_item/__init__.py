"""Transformer that predicts the next item of a sequence: network, training, fitted model."""
