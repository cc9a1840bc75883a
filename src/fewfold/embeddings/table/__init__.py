"""Embedding tables whose rows are sparse combinations of anchors."""
