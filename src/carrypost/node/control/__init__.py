"""The local socket by which programs speak to their node."""
