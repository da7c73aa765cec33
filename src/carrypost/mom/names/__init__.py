"""Names of topics and queues: what is bound on this node, and what other nodes advertise."""
