"""Digits classified from 5,000 labels and 45,000 images without: the label is a latent variable."""
