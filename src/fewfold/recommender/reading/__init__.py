"""Data in: logs from files, frames and matrices; public sets; the log that comes along."""
