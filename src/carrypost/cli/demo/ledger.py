"""State of the scene as the nodes' own records tell it: who reaches whom, who has what, what was delivered when.

The nodes write their records a few times a second; the ledger reads what was added, puts the rows of all nodes into the
order of their times, and keeps each back for a moment, because rows of other nodes may come late. Nothing that the
demonstration shows comes from anywhere else, except the datagrams, which nodes count.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from carrypost.errors import CarrypostError
from carrypost.log.files import refusing
from carrypost.log.record import Kind, Record, Row

_EVERY_S = 0.1
_BEHIND_S = 0.3
"""Age at which a row is told: longer than nodes keep rows to themselves."""
PATIENCE_S = 30.0
"""Time that something may take that a scene announced; a busy machine is slow."""
RECEIPT, STOMP = "receipt", "stomp"
"""Names of messages without a label: control messages about a letter, and messages of STOMP clients."""
_UNLABELLED = {"control/": RECEIPT, "topic/": STOMP}
"""Names of such messages by how their destinations begin."""
_ID = "ID:"
"""Start of what records call a message without a label."""


class UnexpectedError(CarrypostError):
    """A scene did not come out as it was announced."""


class Ledger:
    """Events of all nodes, read from their records."""

    def __init__(self, folder: Path) -> None:
        self.names: dict[str, str] = {}
        """Names of the nodes by their ids."""
        self.holds: defaultdict[str, list[str]] = defaultdict(list)
        """Names of the messages that each node has a copy of."""
        self.published: dict[str, Row] = {}
        """Publications by the names of their messages."""
        self.received: dict[tuple[str, str], Row] = {}
        """First receptions by message and node."""
        self.delivered: dict[tuple[str, str], Row] = {}
        """First deliveries by message and node."""
        self.receipts: dict[str, Row] = {}
        """Receipts by message, as its author got them."""
        self._news = asyncio.Event()
        self._up: set[tuple[str, str]] = set()
        self._folder = folder
        self._offsets: defaultdict[str, int] = defaultdict(int)
        self._waiting: list[Row] = []
        self._born: dict[str, float] = {}
        """Times of publications, as soon as they are known."""
        self._called: dict[str, str] = {}
        """Names of messages without a label, by id."""

    # --- questions ---------------------------------------------------------------------------------------------

    def reached(self, node: str) -> list[str]:
        """Return the nodes with which a node has a link in both directions."""
        return [other for other in self.names.values() if {(node, other), (other, node)} <= self._up]

    def has(self, node: str, *messages: str) -> bool:
        """Return True if a node has a copy of all of these messages."""
        return set(messages) <= set(self.holds[node])

    def wait_s(self, message: str, node: str) -> float:
        """Return how long after its publication a message was delivered to a node."""
        return self.delivered[message, node]["t"] - self.published[message]["t"]

    # --- reading -----------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition of the ledger holds; raise `UnexpectedError` if that takes too long."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise UnexpectedError(f"{what}: did not happen within {PATIENCE_S:.0f} s") from None

    async def follow(self) -> AsyncIterator[tuple[list[Row], float]]:
        """Read what nodes write, again and again; each time return the next rows, and the time up to which that was."""
        while True:
            until_s = time.time() - _BEHIND_S
            yield self.read(until_s), until_s
            await asyncio.sleep(_EVERY_S)

    def read(self, until_s: float = float("inf")) -> list[Row]:
        """Take what was added to the records up to a time; return it in order."""
        with refusing(f"the records in {self._folder} cannot be read"):
            for file in self._folder.glob("*.jsonl*"):
                self._waiting += self._added(file)
        self._waiting.sort(key=self._order)
        count = bisect_right(self._waiting, until_s, key=lambda row: self._order(row)[0])
        rows, self._waiting = self._waiting[:count], self._waiting[count:]
        for row in rows:
            row["t"], _ = self._order(row)
            self._apply(row)
        self._news.set()
        return rows

    def _order(self, row: Row) -> tuple[float, bool]:
        """Return the place of a row among others: nothing about a message comes before its publication.

        A node records that a moment after the first datagrams have left.
        """
        return max(row["t"], self._born.get(row["message"] or "", 0.0)), row["kind"] != Kind.PUBLISH

    def _added(self, file: Path) -> list[Row]:
        """Return the whole rows that a file has gained, with names in the place of ids."""
        name = file.name.removesuffix(".part")
        try:
            with file.open("rb") as open_file:
                open_file.seek(self._offsets[name])
                added = open_file.read()
        except FileNotFoundError:  # It was just given its final name.
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offsets[name] += len(whole)
        return [self._named(row) for row in Record.from_json_lines(whole.splitlines()).rows()]

    def _named(self, row: Row) -> Row:
        row["node"] = self.names.get(row["node"], row["node"])
        row["peer"] = self.names.get(row["peer"] or "", row["peer"])
        row["source"] = self.names.get(row["source"] or "", row["source"])
        if row["kind"] == Kind.PUBLISH and row["message"] is not None and row["attrs"] is not None:
            self._born[row["message"]] = row["t"]
            for start, name in _UNLABELLED.items():
                if row["message"].startswith(_ID) and row["attrs"]["destination"].startswith(start):
                    self._called[row["message"]] = name
        return row

    def _apply(self, row: Row) -> None:
        kind, node, peer = row["kind"], row["node"], row["peer"]
        if peer is not None and kind in {Kind.UP, Kind.DOWN, Kind.ONEWAY}:
            (self._up.add if kind == Kind.UP else self._up.discard)((node, peer))
        elif kind == Kind.JOIN:  # A killed node has not recorded the loss of its links.
            self._up = {pair for pair in self._up if node not in pair}
        elif row["message"] is not None:
            row["message"] = self._called.get(row["message"], row["message"])
            self._apply_message(row, node, row["message"])

    def _apply_message(self, row: Row, node: str, message: str) -> None:
        held = self.holds[node]
        match row["kind"]:
            case Kind.PUBLISH:
                self.published.setdefault(message, row)
            case Kind.RECEIVE:
                self.received.setdefault((message, node), row)
            case Kind.DELIVER if message in self.published:
                self.delivered.setdefault((message, node), row)
            case Kind.RECEIPT:
                self.receipts.setdefault(message, row)
        if row["kind"] in {Kind.PUBLISH, Kind.RECEIVE} and message not in held:
            held.append(message)
        elif row["kind"] in {Kind.DROP, Kind.EXPIRE} and message in held:
            held.remove(message)
