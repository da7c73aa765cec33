"""The socket between a node and programs of other processes: its frames, a provider at each end, and served nodes."""
