"""Sparse coding of dense tables: matching pursuit and dictionary learning."""
