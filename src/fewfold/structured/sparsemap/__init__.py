"""SparseMAP: solvers, marginals and their derivatives."""
