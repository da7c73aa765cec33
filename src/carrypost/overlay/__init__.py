"""Opportunistic overlays: brokers that follow mobility, and pass messages along short paths."""
