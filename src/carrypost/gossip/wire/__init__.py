"""The wire format: frames, their bytes, and payloads in pieces."""
