"""Population mode: no hosts run, and sets of messages pass over contacts after two calibrated delays."""
