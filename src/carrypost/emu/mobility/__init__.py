"""How nodes move: models that draw tracks from a seed, and readers of recorded movement."""
