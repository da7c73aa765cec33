"""Identities of nodes, and the signatures that they make."""
