"""The papers whose tables and figures are compared."""

from experiments.evidence.published import Paper

ANCHORS = Paper(
    "Liang et al., 2021",
    "Anchor & Transform: learning sparse embeddings for large vocabularies",
)
MARGINALIZATION = Paper(
    "Correia et al., 2020",
    "Efficient marginalization of discrete and structured latent variables via sparsity",
)
FASTVAE = Paper(
    "Chen et al., 2022",
    "Fast variational autoencoder with inverted multi-index for collaborative filtering",
)
HOPFIELD = Paper("Santos et al., 2024", "Sparse and structured Hopfield networks")
MIXED = Paper("Farinhas et al., 2022", "Sparse communication via mixed distributions")
PAPERS = (ANCHORS, MARGINALIZATION, FASTVAE, HOPFIELD, MIXED)
