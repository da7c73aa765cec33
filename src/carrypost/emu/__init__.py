"""The emulator: the same hosts as on real sockets, in virtual time, with every chance drawn from a seed."""
