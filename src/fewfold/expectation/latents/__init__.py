"""Distributions of discrete latents: categorical, bits, structures."""
