"""Quality of a FastVAE trained by one, two and three processes."""
