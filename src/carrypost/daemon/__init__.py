"""Protocols that a node speaks with programs in other languages."""
