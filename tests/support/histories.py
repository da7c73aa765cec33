"""Consumers whose modulator's state is the list of all events before: an oracle for states that travel.

Each result is that list. So it is right only if the seat processed exactly the events of the results before it, of all
producers, in that order: what a sequential run would give. Every third event gives no result.
"""

from __future__ import annotations

from tests.support.channels import World

from carrypost.errors import LocalError
from carrypost.log.events import Event, Refused
from carrypost.model.ids import MessageId
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import Event as Input
from carrypost.overlay.modulators.registry import Result, modulator

HISTORY = Modulator("history", 1, b"\x80")


@modulator("history")
class History:
    """Return the names of all events so far, except with every third event."""

    def __init__(self) -> None:
        self.names: list[bytes] = []

    def process(self, event: Input) -> list[Input | Result]:
        assert isinstance(event.payload, bytes)
        self.names.append(event.payload)
        return [] if len(self.names) % 3 == 0 else [Result(self.save(), {})]

    def save(self) -> bytes:
        return b" ".join(self.names)

    def load(self, state: bytes) -> None:
        self.names = state.split(b" ")


class Histories(World):
    """A world in which consumers have this modulator."""

    def __init__(self, names: str, **options: object) -> None:
        super().__init__(names, **options)  # type: ignore[arg-type]
        self.texts: dict[MessageId, str] = {}
        self.emitted = 0
        self.refused: list[tuple[str, str]] = []

    def _watch(self, at: float, node: str, event: Event) -> None:
        super()._watch(at, node, event)
        if isinstance(event, Refused):
            self.refused.append((node, event.reason))

    def emit(self, node: str, **options: float) -> None:
        if node not in self.down:
            text = f"{node}{self.emitted}"
            try:
                self.texts[self.net.emit(node, "flood", text.encode(), attributes={}, **options)] = text
            except LocalError:  # After a disk was full the cache is smaller for a while.
                self.net.fill_disk(node, full=False)
            else:
                self.emitted += 1

    def consume(self, node: str, modulator: Modulator = HISTORY) -> str:  # type: ignore[override]
        destination = self.net.consume(node, "flood", modulator)
        self.since[destination] = node, self.net.now
        return destination

    def histories(self, destination: str) -> list[list[str]]:
        """Return the results of a subscription, once each, in order."""
        consumer, _ = self.since[destination]
        found = {each.message: each for each in reversed(self.net.deliveries(consumer))}
        results = [each for each in reversed(found.values()) if each.descriptor.destination == destination]
        return [each.payload.decode().split() for each in results]

    def wrong(self) -> list[str]:
        """Return results that are missing or differ from a sequential run, for every subscription."""
        return [fault for destination in self.since for fault in self._wrong(destination)]

    def _wrong(self, destination: str) -> list[str]:
        consumer, since = self.since[destination]
        found, before = [], list[str]()
        for each in self.histories(destination):
            if each[: len(before)] != before:
                found.append(f"{consumer}: {each} follows {before}")
            gaps = [at for at in range(len(before) + 1, len(each)) if at % 3]
            found += [f"{consumer}: no result of {each[at - 1]}" for at in gaps]
            before = each
        texts = {self.texts[message]: of for message, of in self.stored.items()}
        numbers: dict[str, list[int]] = {}
        for text in before:
            node, number, _ = texts.get(text, ("nobody", 0, 0.0))
            numbers.setdefault(node, []).append(number)
        for node in {each for each, _, _ in self.stored.values()} | numbers.keys():
            seen = numbers.get(node, [])
            wanted = {number for of, number, at in texts.values() if of == node and at >= since}
            lost = sum(count for to, by, count in self.lost if (to, by) == (destination, node))
            if node == "nobody" or seen != sorted(set(seen)):
                found.append(f"{consumer} from {node}: {seen}")
            # The last event may have given no result.
            if len(wanted - set(seen)) > lost + (len(before) % 3 == 2):
                found.append(f"{consumer} from {node}: {sorted(wanted - set(seen))} missing, {lost} told of")
        return found

    def settle(self, seconds: int = 400) -> None:
        """Wait until everything has arrived."""
        for _ in range(seconds // 10):
            self.net.advance(10)
            if not self.wrong():
                return
