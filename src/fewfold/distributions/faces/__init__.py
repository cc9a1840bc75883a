"""Faces of the probability simplex and distributions over them."""
