"""Values that all packages share: ids, descriptors, patterns, privilege."""
