"""Rationales: the sentences of a review by which its sentiment is decided."""
