"""Initialisation of anchors and of their sparse transforms."""
