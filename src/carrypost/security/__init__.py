"""Identities of nodes and their signatures, sealed messages, circles, and protected datagrams."""
