"""Movement of nodes: models that draw tracks from a seed, and readers of recorded movement."""
