"""The messages of this host: the cache, its order of privilege, and its deadlines."""
