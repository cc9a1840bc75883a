"""The endpoints of the API, a file for each group."""
