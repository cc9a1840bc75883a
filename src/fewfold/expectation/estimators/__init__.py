"""Estimators of expectations over discrete latents."""
