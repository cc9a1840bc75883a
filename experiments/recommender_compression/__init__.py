"""How small the two tables of FastVAE may become."""
