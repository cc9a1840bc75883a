"""An autoencoder of MNIST with a ten-dimensional latent that may have exact zeros."""
