"""What happened in a run: written, read, and summed up."""
