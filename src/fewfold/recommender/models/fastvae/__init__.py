"""FastVAE: a variational autoencoder of users' items with a sampled softmax."""
