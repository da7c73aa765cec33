"""A real node: the host on real sockets, with a real disk under it."""
