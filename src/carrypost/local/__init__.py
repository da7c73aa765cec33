"""The application's side of one node: what it asked for, what it was given, what it publishes."""
