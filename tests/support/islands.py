"""Hosts in virtual time that know all links between them: an island without discovery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Self

from carrypost.emu.engine.network import Network
from carrypost.island.island import Island
from carrypost.island.links import names
from carrypost.log.events import Event, Received, Stored
from carrypost.model.ids import MessageId, NodeId
from carrypost.testing import network

S = 1_000_000


class Links:
    """The links of a network, as its hosts know them."""

    def __init__(self) -> None:
        self.version = 0
        self.edges: dict[NodeId, set[NodeId]] = {}

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        return self.edges.get(node, ())

    def names(self, origin: NodeId) -> Mapping[bytes, NodeId | None]:
        return names(self, origin)


class Islands:
    """A network whose hosts know the island from the moment when links come and go."""

    def __init__(self, names: Iterable[str], **options: object) -> None:
        self.names = list(names)
        options = {"island": True} | options
        self.net: Network = network(*self.names, **options)  # type: ignore[arg-type]
        self.links = Links()
        self.found_s = 2.5
        """Seconds after which neighbours have found each other."""
        self.told = True
        """True if hosts are informed of changed links."""
        self.received: list[tuple[str, Received]] = []
        self.stored: set[MessageId] = set()
        """Messages that survive a crash of their authors."""
        self.net.watch(self._watch)
        self._wished: set[frozenset[str]] = set()

    def __enter__(self) -> Self:
        self.net.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.net.__exit__()

    def _watch(self, _seconds: float, node: str, event: Event) -> None:
        if isinstance(event, Received):
            self.received.append((node, event))
        elif isinstance(event, Stored):
            self.stored.add(event.message)

    def id(self, name: str) -> NodeId:
        return self.net._driver(name).identity.node  # noqa: SLF001 - ids of signed nodes

    def island(self, name: str) -> Island:
        island = self.net.host(name)._island  # noqa: SLF001 - to see into it
        assert island is not None
        return island

    def link(self, *pairs: str) -> None:
        """Let the two hosts of each pair hear each other; a pair is two one-letter names."""
        for a, b in map(tuple, pairs):
            self.net.link(a, b)
            self._wished.add(frozenset((a, b)))
        self.net.advance(self.found_s)
        self.tell()

    def line(self, names: str | None = None) -> None:
        self.link(*map("".join, pairwise(names or self.names)))

    def unlink(self, *pairs: str) -> None:
        for a, b in map(tuple, pairs):
            self.net.unlink(a, b)
            self._wished.discard(frozenset((a, b)))
        self.tell()

    def kill(self, name: str) -> None:
        self.net.kill(name)
        self.tell()

    def restart(self, name: str) -> None:
        self.net.restart(name)
        self.net.advance(self.found_s)
        self.tell()
        for other in self.up():
            if self.told:
                self.island(other).ways.restarted(self.id(name), round(self.net.now * S))

    def up(self) -> list[str]:
        return [name for name in self.names if self.net._driver(name).state.value == "running"]  # noqa: SLF001

    def tell(self) -> None:
        """Inform all hosts of the present links, if `told` is set."""
        if not self.told or self.net.host(self.up()[0])._island is None:  # noqa: SLF001 - where it is off
            return
        up = set(self.up())
        self.links.version += 1
        self.links.edges = {}
        for pair in self._wished:
            if pair <= up:
                a, b = map(self.id, pair)
                self.links.edges.setdefault(a, set()).add(b)
                self.links.edges.setdefault(b, set()).add(a)
        for name in sorted(up):
            self.net.host(name).set_links(self.links, round(self.net.now * S))
        self.net.advance(0)

    def instants(self, count: int) -> int:
        """Let this many instants pass at which something happens: a datagram arrives, a timer ends, the disk answers.

        Return the number of such instants before the network was quiet for 30 ms; datagrams never stay in the air that
        long.
        """
        scheduler = self.net._scheduler  # noqa: SLF001 - to stop anywhere
        for number in range(count):
            due_us = scheduler.next_time()
            if due_us is None or due_us > scheduler.now + 30_000:
                return number
            scheduler.run_until(due_us)
        return count

    def withheld(self, name: str) -> list[MessageId]:
        """Messages of others and its own that a host keeps from the epidemic."""
        island = self.net.host(name)._island  # noqa: SLF001 - to see into it
        return [] if island is None else [each.copy.id for each in island.ways._errands.values() if each.withheld]  # noqa: SLF001

    def copies(self) -> dict[str, int]:
        """Count the messages of each host that holds any."""
        return {name: count for name in self.up() if (count := self.net.host(name).copies)}

    def delivered(self, name: str) -> Counter[MessageId]:
        """Count deliveries of each message, without those that come again after a crash."""
        return Counter(each.message for each in self.net.deliveries(name) if not each.redelivered)

    def refused(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for name in self.up():
            found.update(self.net.host(name).overview().refused)
        return found
