"""The table of FastVAE: published numbers next to ours."""
