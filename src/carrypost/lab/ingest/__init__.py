"""Traces that people bring, as tables `positions` or `contacts` (`carrypost lab ingest`)."""
