"""Scenarios: files, their keys, and the files that they name."""
