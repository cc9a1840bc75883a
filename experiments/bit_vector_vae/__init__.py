"""The bit-vector autoencoder of Correia et al. (2020) on Fashion-MNIST."""
