"""What hosts say to each other: frames, their bytes, and payloads in pieces."""
