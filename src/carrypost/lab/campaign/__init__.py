"""Campaigns of emulated runs: which there are, where they run, and what became of them."""
