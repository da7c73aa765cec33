"""The socket between a node and programs of other processes: its frames, and a provider at each end."""
