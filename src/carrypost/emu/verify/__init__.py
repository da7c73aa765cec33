"""Verification of runs: invariants, the flood bound, and the search for rare faults."""
