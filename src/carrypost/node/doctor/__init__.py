"""Finds out what a machine's network lets a node do."""
