"""The store of a real node: one SQLite file."""
