"""Training of FastVAE, with checkpoints."""
