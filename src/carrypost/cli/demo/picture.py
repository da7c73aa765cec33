"""State of the scene as the nodes' own records tell it (`Ledger`), and how the demonstration shows it (`Picture`).

The ledger knows who reaches whom, who has what, and what was delivered when. The nodes write their records a few times
a second; the ledger reads what was added, puts the rows of all nodes into the order of their times, and keeps each back
for a moment, because rows of other nodes may come late. Nothing that the demonstration shows comes from anywhere else,
except the datagrams, which nodes count.

On a terminal lines scroll above one live picture, elsewhere there are lines alone. The picture has a box for each
place. In it are the nodes that are there, below each name the neighbours with which it has a link, and the messages of
the current scene that it has a copy of.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from carrypost.cli.demo.cast import ALONE, HILL, LAKE, Cast
from carrypost.errors import CarrypostError
from carrypost.log.files import refusing
from carrypost.log.record import REDELIVERED, Kind, Record, Row

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


_PLACES = {HILL: "Hill village", ALONE: "far from both", LAKE: "Lake village"}
"""Places from left to right, and their titles."""
_LINES = 8
"""Lines of a box that is not full."""
_FRAME = 4
"""Columns that the frame of a box takes."""


class Picture:
    """The one place that prints."""

    def __init__(self, console: Console, cast: Cast, ledger: Ledger, *, pace: float = 1.0) -> None:
        self._console = console
        self._cast, self._ledger = cast, ledger
        self._pace = pace
        drawable = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if drawable else None
        self._title = ""
        self._messages: Sequence[str] = ()
        """Messages of this scene."""
        self.texts: dict[str, str] = {}
        """Texts of messages, for people."""
        self._known: set[str] = set()
        """Messages of all scenes so far: the last rows of a scene come after its end."""
        self._began_s = time.time()
        self._lines: list[tuple[float, Text]] = []
        """Lines that wait until everything is known that happened before, with their times."""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._release(float("inf"))
        if self._live is not None:
            self._live.stop()

    async def show(self) -> None:
        """Tell what nodes record, and draw the picture, for as long as this task runs."""
        async for rows, until_s in self._ledger.follow():
            for row in rows:
                self._describe(row)
            self._release(until_s)
            if self._live is not None:
                self._live.update(self.drawn(), refresh=True)

    # --- lines -------------------------------------------------------------------------------------------------

    async def scene(self, title: str, about: str, messages: Sequence[str]) -> None:
        """Begin a scene, which is about these messages."""
        self._title, self._messages = title, messages
        self._known.update(messages)
        self._lines.append((time.time(), Text(f"\n{title}\n", "bold") + Text(about, "not bold")))
        await self.pause(3.0)

    async def direct(self, what: str) -> None:
        """Say what happens around the nodes, which nobody tells them."""
        self._note(time.time(), "", Text(what, "italic yellow"))
        await self.pause(1.2)

    def conclude(self, what: str) -> None:
        """Say what a scene has shown."""
        self._note(time.time(), "", Text(what, "bold green"))

    def remark(self, who: str, what: str) -> None:
        """Say what a person or a program does."""
        self._note(time.time(), who, Text(what))

    async def pause(self, length_s: float) -> None:
        """Give people time to read; none if the demonstration is quick."""
        await asyncio.sleep(length_s * self._pace)

    def _describe(self, row: Row) -> None:
        """Say what a row of the records means, if it means anything to people."""
        node, peer, message = row["node"], row["peer"], row["message"]
        if row["kind"] in {Kind.UP, Kind.DOWN} and peer is not None and node < peer:
            what = "reaches" if row["kind"] == Kind.UP else "no longer reaches"
            self._note(row["t"], node, Text(f"{what} {peer}", "dim"))
        elif message is not None and message in self._known and message in self._ledger.published:
            self._describe_message(row, node, Text(f"[{message}]", _style(message)))

    def _describe_message(self, row: Row, node: str, message: Text) -> None:
        what: Text | None = None
        if row["kind"] == Kind.PUBLISH:
            text = self.texts.get(str(row["message"]), "")
            what = Text("sends ") + message + Text(f": {text}" if text else "")
        elif row["kind"] == Kind.RECEIVE:
            hops = "" if row["hops"] == 1 else f", {row['hops']} hops from {row['source']}"
            what = Text("has a copy of ") + message + Text(f" from {row['peer']}{hops}")
        elif row["kind"] == Kind.DELIVER and node != row["source"] and row["detail"] != REDELIVERED:
            waited_s = self._ledger.wait_s(str(row["message"]), node)
            what = Text("reads ") + message + Text(f", {waited_s:.1f} s after it was sent")
        elif row["kind"] == Kind.RECEIPT:
            what = Text("hears that ") + message + Text(" was delivered")
        if what is not None:
            self._note(row["t"], node, what)

    def _note(self, t_s: float, who: str, what: Text) -> None:
        """Have a line printed, with its time and its subject, once all that happened before is."""
        passed = Text(f"{max(0.0, t_s - self._began_s):5.1f} s  ", "dim")
        self._lines.append((t_s, passed + Text(f"{who:<6}", "bold") + what))

    def _release(self, until_s: float) -> None:
        """Print the lines up to a time, in order."""
        self._lines.sort(key=lambda line: line[0])
        while self._lines and self._lines[0][0] <= until_s:
            # Without a terminal there is no width to break lines at.
            self._console.print(self._lines.pop(0)[1], soft_wrap=not self._console.is_terminal)

    # --- picture -----------------------------------------------------------------------------------------------

    def drawn(self) -> RenderableType:
        """Return the picture as it is now."""
        title = Text(f" {self._title or 'Starting six nodes'} ", "bold")
        passed = Text(f"{time.time() - self._began_s:.0f} s ", "dim")
        boxes = Table.grid(*(Column(ratio=1) for _ in _PLACES), expand=True)
        inside = max(_FRAME, self._console.width // len(_PLACES) - _FRAME)
        contents = {place: self._nodes_at(place, inside) for place in _PLACES}
        height = max(_LINES, *map(len, contents.values())) + 2
        boxes.add_row(*(Panel(Group(*lines), title=_PLACES[place], height=height) for place, lines in contents.items()))
        return Group(Rule(title + passed, align="left", style="dim"), boxes)

    def _nodes_at(self, place: str, width: int) -> list[Text]:
        """Return the lines of a box: the nodes at a place, their neighbours, and their messages."""
        lines: list[Text] = []
        for name, actor in self._cast.actors.items():
            if actor.place == place:
                lines.append(Text(name, "bold") + Text(" ") + self._state(name))
                copies = [Text(f"[{each}]", _style(each)) for each in self._messages if self._ledger.has(name, each)]
                held = Text(" ").join(copies).wrap(self._console, width - 1)
                lines += [Text(" ") + line for line in held] or [Text()]
        return lines

    def _state(self, name: str) -> Text:
        actor = self._cast[name]
        if not actor.is_ready:
            return Text("starts", "dim") if actor.runs else Text("is off", "bold red")
        reached = " ".join(self._ledger.reached(name))
        return Text(f"↔ {reached}", "green") if reached else Text("alone", "dim")


_STYLES = ("cyan", "magenta", "blue", "red")


def _style(message: str) -> str:
    """Return the colour of a message, the same wherever it is shown."""
    return f"bold {_STYLES[sum(message.encode()) % len(_STYLES)]}"
