"""Names of topics and queues: those bound on this node, and those that other nodes advertise."""
