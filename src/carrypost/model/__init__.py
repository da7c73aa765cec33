"""Values the whole house speaks of: ids, descriptors, patterns, privilege."""
