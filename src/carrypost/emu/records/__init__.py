"""Records of runs: written, read, and summed up."""
