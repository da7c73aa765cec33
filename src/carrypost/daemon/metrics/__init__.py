"""Metrics of a node for Prometheus: `families` makes them of its status, `server` serves them over HTTP."""
