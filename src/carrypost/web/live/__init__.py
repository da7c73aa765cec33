"""Live pages: running nodes on this machine, and their messages."""
