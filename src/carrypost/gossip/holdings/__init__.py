"""What this host has: the cache, its order of privilege, and its deadlines."""
