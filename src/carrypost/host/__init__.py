"""One node of the network, sans I/O: `Host` composes the layers; beside it what it tells of itself, and recovery."""

from carrypost.host.host import Host

__all__ = ["Host"]
