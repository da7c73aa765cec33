"""One node of the network, sans I/O: `Host` composes the layers; beside it its report, recovery, its drivers' loop."""

from carrypost.host.host import Host

__all__ = ["Host"]
