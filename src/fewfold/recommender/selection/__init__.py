"""Choice of a model for a log: candidates, trials on a validation part, and the choice."""
