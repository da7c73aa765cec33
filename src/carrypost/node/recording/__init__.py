"""The record of a real node, in rotated files."""
