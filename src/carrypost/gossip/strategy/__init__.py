"""Strategies: the beginning of a contact, and offers."""
