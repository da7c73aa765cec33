"""Web pages: what happened in a run, served to browsers on this machine only."""
