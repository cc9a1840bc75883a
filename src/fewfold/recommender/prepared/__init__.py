"""Logs prepared on disk: hashed into parts of users, numbered, with a manifest."""
