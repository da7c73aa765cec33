"""Values that all packages share: ids, addresses, descriptors and their headers, patterns, selectors."""
