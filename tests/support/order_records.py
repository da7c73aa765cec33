"""Records of ordered topics, row by row, for tests of their readers."""

from __future__ import annotations

from carrypost.log.record import Kind, Record

S = 1_000_000
DEFAULTS = 'duration_s = 1000.0\n[[workload]]\nkind = "script"\nordering = "delta-causal"\n'


class Story:
    """Writes the rows of messages of one topic; sizes are 10, and nodes that meet are linked throughout."""

    def __init__(
        self, nodes: str = "abc", *, ordering: str = "delta-causal", defaults: str = DEFAULTS, destination: str = "x"
    ) -> None:
        self.record = Record("story/default/1")
        self.ordering = ordering
        self.destination = destination
        self._authors: dict[str, str] = {}
        self.record.add(Kind.RUN, 0, "", attrs={"scenario": 'name = "story"', "defaults": defaults, "seed": "1"})
        for node in nodes:
            self.record.add(Kind.JOIN, 0, node)
        for node in nodes[1:]:
            self.record.add(Kind.CONTACT, 0, nodes[0], peer=node, attrs={"end": "1000.0"})
        for at, node in enumerate(nodes[1:], 1):
            for other in nodes[at + 1 :]:
                self.record.add(Kind.CONTACT, 0, node, peer=other, attrs={"end": "1000.0"})

    def publish(
        self, t: float, node: str, message: str, *, until: float | None = None, barrier: int = 0, joins: bool = False
    ) -> None:
        """By its author, which is given it at once."""
        attrs = {"destination": self.destination} | ({"joins": "true"} if joins else {})
        if self.ordering != "none":
            attrs["ordering"] = self.ordering
        if until is not None:
            attrs["deadline"] = repr(float(until))
        self._authors[message] = node
        detail = str(barrier) if self.ordering != "none" else None
        self._add(Kind.PUBLISH, t, node, message, detail=detail, attrs=attrs)
        self._add(Kind.DELIVER, t, node, message)

    def receive(self, t: float, node: str, message: str, *, detail: str | None = None) -> None:
        """Straight from its author."""
        self._add(Kind.RECEIVE, t, node, message, peer=self._authors[message], hops=1, detail=detail)

    def deliver(self, t: float, node: str, message: str, *, detail: str | None = None) -> None:
        self._add(Kind.DELIVER, t, node, message, detail=detail)

    def get(self, t: float, node: str, message: str) -> None:
        """Received and delivered."""
        self.receive(t, node, message)
        self.deliver(t, node, message)

    def expire(self, t: float, node: str, message: str, *, clock: float | None = None) -> None:
        self._add(Kind.EXPIRE, t, node, message, attrs=None if clock is None else {"clock": repr(clock)})

    def drop(self, t: float, node: str, message: str, reason: str = "expired") -> None:
        self._add(Kind.DROP, t, node, message, detail=reason)

    def leave(self, t: float, node: str, detail: str | None = None) -> None:
        self.record.add(Kind.LEAVE, round(t * S), node, detail=detail)

    def join(self, t: float, node: str) -> None:
        self.record.add(Kind.JOIN, round(t * S), node)

    def size(self, t: float, node: str, registry: str, size: int, *, at: str = "") -> None:
        """A sample of a registry."""
        attrs = {"destination": self.destination} | ({"at": at} if at else {})
        self.record.add(Kind.REGISTRY, round(t * S), node, size=size, detail=registry, attrs=attrs)

    def end(self, t: float) -> Record:
        """End the run."""
        self.record.add(Kind.REGISTRY, round(t * S), "a", size=0, detail="cache")
        return self.record

    def _add(self, kind: Kind, t: float, node: str, message: str, **columns: object) -> None:
        self.record.add(
            kind, round(t * S), node, message=message, source=self._authors.get(message, "?"), size=10,
            **columns,  # type: ignore[arg-type]
        )  # fmt: skip
