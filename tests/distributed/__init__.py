"""Tests with several processes, on gloo."""
