"""Real datagrams: sockets on all interfaces, by all means."""
