"""Sparse attention inside Hugging Face transformers."""
