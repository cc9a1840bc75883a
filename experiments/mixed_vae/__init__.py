"""An autoencoder of digits whose ten numbers may be zeros."""
