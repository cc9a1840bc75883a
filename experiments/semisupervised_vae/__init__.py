"""Semi-supervised MNIST with 5,000 labels: the label of other images is a latent variable."""
