"""Factor graphs: LP-SparseMAP over several structures that share bits."""
