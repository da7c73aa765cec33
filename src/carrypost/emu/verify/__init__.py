"""Whether a run was right: invariants, the flood bound, and the search for rare faults."""
