"""Splits, metrics, evaluation and comparison of models."""
