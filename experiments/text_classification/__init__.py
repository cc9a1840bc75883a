"""Text classification from small tables of word vectors: published numbers next to ours."""
