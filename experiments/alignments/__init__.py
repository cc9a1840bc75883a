"""Natural language inference with sparse and structured alignments of words."""
