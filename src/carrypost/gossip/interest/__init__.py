"""Interests: profiles, and the messages that match them."""
