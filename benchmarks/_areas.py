"""CPU time of a node by area: clocks around its joints, installed before it starts.

Each area has a few functions whose time is counted as its own, less what other areas take inside them. A clock costs
about a microsecond per call, so shares are what these figures are good for.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from carrypost.gossip.transfers import inbound
from carrypost.gossip.wire import codec
from carrypost.host import Host
from carrypost.node.store.store import Store
from carrypost.node.udp import sockets
from carrypost.node.udp.channels import Outlet

WRITER_THREAD = "carrypost-store"
_RECEIVING = "sockets, receiving"
_SENDING = "sockets, sending"


class Areas:
    """Clocks on the nodes of this process that start from now on."""

    def __init__(self) -> None:
        self._ns: Counter[str] = Counter()
        self._open: list[int] = []
        """Of each clock that runs, the time that others took inside it."""
        self.reset()
        self._watch("decode", codec, ["decode"])
        self._watch("encode", codec, ["datagrams"])
        self._watch("verify", inbound, ["verify"])
        self._watch("host", Host, ["receive", "tick", "durable", "changes", "outgoing", "events", "confirm"])
        self._watch("store, loop", Store, ["submit", "answers", "read", "payload"])
        self._watch(_RECEIVING, sockets, ["drain"])
        self._watch(_SENDING, Outlet, ["send"])

    def reset(self) -> None:
        """Count from here on."""
        self._ns.clear()
        self._process_ns = time.process_time_ns()
        self._writer_ns = _thread_ns(WRITER_THREAD)

    def _watch(self, area: str, owner: object, names: Iterable[str]) -> None:
        for name in names:
            setattr(owner, name, self._clocked(area, getattr(owner, name)))

    def _clocked(self, area: str, function: Callable[..., Any]) -> Callable[..., Any]:
        running, spent, clock = self._open, self._ns, time.thread_time_ns

        @functools.wraps(function)
        def clocked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it is
            running.append(0)
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                took = clock() - began
                spent[area] += took - running.pop()
                if running:
                    running[-1] += took

        return clocked

    def spent_s(self) -> dict[str, float]:
        """Return CPU seconds by area, and the rest of the whole process's."""
        found = {area: ns / 1e9 for area, ns in self._ns.items()}
        found["store, writer thread"] = (_thread_ns(WRITER_THREAD) - self._writer_ns) / 1e9
        whole_s = (time.process_time_ns() - self._process_ns) / 1e9
        return {**found, "the rest": whole_s - sum(found.values())}


def _thread_ns(name: str) -> int:
    for thread in threading.enumerate():
        if thread.name == name and thread.ident is not None:
            return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
    return 0
