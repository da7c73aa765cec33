"""One node of the network, sans I/O: `Host` composes the layers; also overviews, recovery and the drivers' loop."""

from carrypost.host.host import Host

__all__ = ["Host"]
