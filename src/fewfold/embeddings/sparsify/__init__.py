"""Training that makes and keeps anchor tables sparse."""
