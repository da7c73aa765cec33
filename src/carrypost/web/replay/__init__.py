"""Records of runs as pages show them: files, one pass over their rows, and answers to questions about them."""
