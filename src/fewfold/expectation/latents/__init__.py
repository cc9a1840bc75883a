"""Distributions of discrete latents: categorical, Bernoulli, structured."""
