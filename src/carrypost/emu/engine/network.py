"""Hosts in virtual time, as tests and viewers see them.

Commands and queries use the names of nodes; ids of signed nodes are translated where they are shown. A command takes
effect at once, at the present instant. Time passes only by `run` and `advance`, or, inside a virtual event loop, in
step with the loop. A network is opened once; after it is closed it still answers questions and takes no commands.
Mistakes raise `LocalError`, and then nothing was changed. The commands of circles are those of `host.circles`, with the
name of the node first (`CircleCalls`).

Contacts of a file begin and end by themselves, at their times, in the order of `scheduler.Phase` (`play`); as with any
link, no host is notified. A link that was made by hand already is left as it is, and ends at the time in the file.
"""

# This is the public face of the emulator for tests. Commands act at once and time passes only on
# request, so that a test reads as a list of what happens. The same object works with and without an
# event loop: in a virtual loop (`testing.run`) time passes with the loop's, so that programs of the
# API and hosts share one clock.

from __future__ import annotations

import asyncio
import contextlib
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from carrypost.config import Settings, differences, text_form
from carrypost.emu.arguments import check_callable, check_flag, check_name, microseconds
from carrypost.emu.engine.applications import DeliveredMessage, InboxApplication, message_ids
from carrypost.emu.engine.driver import EmulatedDriver, Environment, NodeState
from carrypost.emu.engine.loop import VirtualLoop
from carrypost.emu.engine.radio import LinkModel, Radio, Traffic
from carrypost.emu.engine.recorder import Recorder, RecordFile
from carrypost.emu.engine.samples import OverlayOf
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.errors import LocalError, StateError
from carrypost.gossip.wire.frames import Frame
from carrypost.gossip.wire.pieces import Blank
from carrypost.host import Host
from carrypost.log.events import Event
from carrypost.log.record import Kind, Record
from carrypost.model.address import as_given, exactly
from carrypost.model.descriptor import AttributeValue, Descriptor, Ordering
from carrypost.model.descriptor_values import Privilege
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import MICROSECONDS
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.traces.contacts import FOREVER_US, Contact
from carrypost.traces.csvfiles import HEARD
from carrypost.version import __version__

if TYPE_CHECKING:
    from carrypost.application.circles import CircleCommands


class CircleCalls(ABC):
    """Commands about circles, for a network; nodes are named as in the network."""

    @abstractmethod
    def _checked(self, node: str) -> EmulatedDriver:
        """Return the driver of a node; raises `LocalError` or `StateError` if it takes no commands."""

    @abstractmethod
    def open_messaging(self) -> None:
        """Open messaging on every node."""

    def found(self, node: str, name: str) -> NodeId:
        """Found a circle on a node; return its id."""
        with self._circles(node) as (circles, now):
            return circles.found(name, now)

    def invite(self, node: str, circle: str, *, to: str | None = None, days: float = 30, fresh: bool = False) -> str:
        """Return the code of an invitation by an owner; `to`: the card of the one node that it is for."""
        with self._circles(node) as (circles, now):
            return circles.invite(circle, now, to=to, days=days, fresh=fresh)

    def join(self, node: str, code: str, *, root: str = "") -> str:
        """Let a node join the circle of a code, with its root as an owner; return the name that it has there."""
        with self._circles(node) as (circles, now):
            return circles.join(code, now, root=root)

    def remove(self, node: str, circle: str, removed: str) -> None:
        """Let an owner remove a node."""
        with self._circles(node) as (circles, now):
            circles.remove(circle, self._checked(removed).identity.node, now)

    def rotate(self, node: str, circle: str) -> None:
        """Let an owner begin a new epoch."""
        with self._circles(node) as (circles, now):
            circles.rotate(circle, now)

    def leave(self, node: str, circle: str) -> None:
        """Let a node leave a circle."""
        with self._circles(node) as (circles, now):
            circles.leave(circle, now)

    def members(self, node: str, circle: str) -> tuple[NodeId, ...]:
        """Return the members that a node has listed."""
        with self._circles(node) as (circles, _):
            return circles.members(circle)

    def card(self, node: str) -> str:
        """Return the card of a node."""
        with self._circles(node) as (circles, now):
            return circles.card(now)

    def add_card(self, node: str, card: str) -> NodeId:
        """Let a node learn the sealing key of another from its card; return the other's id."""
        with self._circles(node) as (circles, now):
            return circles.add_card(card, now)

    @contextlib.contextmanager
    def _circles(self, node: str) -> Iterator[tuple[CircleCommands, int]]:
        """Yield what takes commands about circles on a node, and the time; then pass on what came of them."""
        driver = self._checked(node)
        self.open_messaging()
        yield driver.host.circles, driver.now
        driver.drain()


_INSTANT_STEPS_MAX = 100_000
"""Fewer than in large emulations: a test that hangs should say so within seconds."""
Watcher = Callable[[float, str, Event], None]
"""Called with every event of every host: seconds, node, event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The options of the whole network."""

    seed: int | str
    confirm: bool
    disk_delay_us: int
    model: LinkModel
    encoded: bool
    record: Record | None
    privilege: Privilege
    contacts: tuple[Contact, ...] = ()
    """Played from the opening on."""
    file: RecordFile | None = None
    """File to which the record is written when the network is closed."""

    def changed(self) -> dict[str, str]:
        """Return the options that differ from the defaults and by which a run differs, as text."""
        model, usual = self.model, LinkModel()
        found: dict[str, object] = {
            name: getattr(model, name)
            for name in ("loss", "duplicate", "reorder", "rate_bytes_per_s")
            if getattr(model, name) != getattr(usual, name)
        }
        if model.delay_us != usual.delay_us:
            found["delay_s"] = model.delay_us / MICROSECONDS
        if self.disk_delay_us:
            found["disk_delay_s"] = self.disk_delay_us / MICROSECONDS
        if not self.confirm:
            found["confirm"] = False
        return {name: text_form(value) for name, value in found.items()}


class Network(CircleCalls):
    """Nodes in virtual time, at first out of each other's reach.

    A network is used once, by ``with`` or ``async with``.
    """

    def __init__(self, names: Iterable[str], options: NetworkOptions, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._scheduler = Scheduler(instant_steps_max=_INSTANT_STEPS_MAX)
        self._radio = Radio(
            self._scheduler, options.seed, model=options.model, encoded=options.encoded, limits=settings.limits
        )
        self._environment = Environment(self._scheduler, self._radio, options.seed)
        self._nodes: dict[str, tuple[EmulatedDriver, InboxApplication]] = {}
        self._recorder = None if options.record is None else Recorder(options.record, self.name)
        self._watchers: list[Watcher] = []
        self._messaging = False
        self._loop: VirtualLoop | None = None
        self._state = "not open yet: use it in a `with` statement"
        for name in names:
            self._make(name, settings)
        for name in sorted({name for contact in options.contacts for name in contact[:2]} - self._nodes.keys()):
            self._make(name, settings)

    def __enter__(self) -> Self:
        if self._state == "open":
            raise StateError("this network is open already")
        if self._state == "closed":
            raise StateError("this network is closed and cannot be opened again: create another one")
        self._state = "open"
        self._loop = _virtual_loop()
        if self._loop is not None:
            self._loop.attach(self._scheduler)
        if self._recorder is not None:
            changes = self._options.changed() | differences(self._settings, Settings.emulated())
            self._recorder.run(self._options.seed, __version__, changes)
        for name in self._nodes:
            self._boot(name)
        play(self._options.contacts, self._scheduler, self._radio, self._options.record)
        return self

    def __exit__(self, *_: object) -> None:
        self._state = "closed"
        self._scheduler.clear()
        if self._loop is not None:
            self._loop.detach(self._scheduler)
        if self._options.file is not None and self._options.record is not None:
            self._options.file.write(self._options.record)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    # ------------------------------------------------------------------------------------------------- time

    @property
    def now(self) -> float:
        """Virtual seconds since the network was opened."""
        return self._scheduler.now / MICROSECONDS

    async def run(self, seconds: float) -> None:
        """Let virtual seconds pass. Inside `testing.run` other tasks go on meanwhile."""
        duration_us = self._begin(seconds)
        if self._loop is not None and duration_us:
            await asyncio.sleep(duration_us / MICROSECONDS)
            return
        end_us = self._scheduler.now + duration_us
        while (due := self._scheduler.next_time()) is not None and due <= end_us:
            # Other tasks get a turn after every instant, so that they act at the time at which they
            # are woken.
            self._scheduler.run_until(due)
            await asyncio.sleep(0)
        self._scheduler.run_until(max(end_us, self._scheduler.now))

    def advance(self, seconds: float) -> None:
        """Let virtual seconds pass; for programs without asyncio."""
        duration_us = self._begin(seconds)
        if self._loop is not None:
            raise StateError("inside testing.run, let time pass with `await net.run(seconds)`")
        self._scheduler.run_until(self._scheduler.now + duration_us)

    # ------------------------------------------------------------------------------------------------ links

    def link(
        self,
        a: str,
        b: str,
        *,
        one_way: bool = False,
        delay_s: float | None = None,
        loss: float | None = None,
        duplicate: float | None = None,
        reorder: float | None = None,
        rate_bytes_per_s: int | None = None,
    ) -> None:
        """Begin a contact; with `one_way` only `b` hears `a`. Options left out are the network's."""
        self._check(a, b)
        model = self._options.model.changed(
            delay_s=delay_s, loss=loss, duplicate=duplicate, reorder=reorder, rate_bytes_per_s=rate_bytes_per_s
        )
        self._radio.link(a, b, one_way=one_way, model=model)

    def unlink(self, a: str, b: str, *, one_way: bool = False) -> None:
        """End a contact; frames in the air are lost."""
        self._check(a, b)
        self._radio.unlink(a, b, one_way=one_way)

    def linked(self, a: str, b: str) -> bool:
        """Return True if `b` hears `a`."""
        self._find(a, b)
        return self._radio.linked(a, b)

    # ------------------------------------------------------------------------------------------------ nodes

    def add(self, name: str, *, privilege: Privilege | None = None, **settings: object) -> None:
        """Add a node, out of reach; further keywords are settings that differ from the network's."""
        if self._state == "closed":
            raise StateError("this network is closed")
        self._make(name, self._settings.replace(**settings), privilege)
        if self._state == "open":
            self._boot(name)

    def kill(self, node: str) -> None:
        """Crash a node: what was not durable is lost, the store is kept. Links stay, for when it is restarted."""
        self._checked(node).crash()
        self._note(Kind.LEAVE, node)

    def restart(self, node: str) -> None:
        """Start again from the store; the emulated application subscribes again."""
        self._check(node)
        self._boot(node)

    def suspend(self, node: str) -> None:
        """Suspend a node: it hears, sends and does nothing."""
        self._checked(node).suspend()

    def resume(self, node: str) -> None:
        """Resume a suspended node, which first does what fell due meanwhile."""
        self._checked(node).resume()

    def fill_disk(self, node: str, *, full: bool = True) -> None:
        """Fill the disk of a node: it takes no new messages; with ``full=False`` make room again."""
        self._checked(node).fill_disk(full=full)

    def fail_disk(self, node: str) -> None:
        """Let the disk of a node fail: batches that are not durable are lost, and another host is restored at once."""
        self._checked(node).crash()
        self._note(Kind.LEAVE, node)
        self._boot(node)

    def host(self, node: str) -> Host:
        """Return the host of a node in its present incarnation. Direct changes to it are noticed by the next `run`."""
        self._find(node)
        return self._driver(node).host

    def reach(self, node: str) -> dict[str, int]:
        """Return the nodes that a node finds in reach now, by name, and over how many hops; needs `island`."""
        self._find(node)
        return {self.name(each): hops for each, hops in self._driver(node).host.reach().items()}

    def overlay(self, node: str) -> OverlayOf:
        """Return the overlay as a node knows it now, by names; needs `overlay.enabled`."""
        self._find(node)
        return OverlayOf(self._driver(node).host.overlay.view(), self.name)

    def name(self, node: NodeId) -> str:
        """Return the name of the node that has this id; an unknown id is returned unchanged."""
        return self._environment.name(node)

    def inject(self, node: str, frames: Iterable[Frame], peer: str) -> None:
        """Give a host frames as if `peer`, any link address, had sent them in one datagram."""
        self._checked(node).inject(frames, peer)

    # --------------------------------------------------------------------------------------------- messages

    def publish(
        self,
        node: str,
        destination: str,
        payload: bytes | Blank = b"",
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        lifetime_s: float | None = None,
        label: str | None = None,
        persistent: bool = False,
        priority: int = 4,
        ordering: str = "none",
        recipients: Collection[str] | None = None,
    ) -> MessageId:
        """Publish as the application of `node`; return the id of the message.

        `ordering` is "none", "causal" or "delta-causal". `recipients`: names of the nodes that the message is for.
        """
        driver = self._checked(node)
        if recipients is not None:
            self._find(*(recipients := as_given(recipients)))
            recipients = [self._driver(name).identity.node for name in recipients]
        message = driver.command().publish(
            destination,
            payload,
            now=driver.now,
            attributes=attributes,
            lifetime_us=None if lifetime_s is None else microseconds(lifetime_s, "lifetime_s"),
            label=label or "",
            persistent=persistent,
            priority=priority,
            ordering=Ordering.named(ordering),
            recipients=recipients,
        )
        driver.report_published()
        driver.drain()
        return message

    def subscribe(
        self, node: str, pattern: str | Mapping[str, str], selector: str | None = None, *, ordered: bool = False
    ) -> int:
        """Subscribe as the application of `node`; return the number to unsubscribe by, valid over restarts.

        `ordered`: the messages have an order. All messages of the destination are received, and filtered at delivery.
        """
        self._check(node)
        check_flag("ordered", ordered)
        driver, inbox = self._nodes[node]
        return inbox.subscribe(driver, pattern, selector, ordered=ordered)

    def unsubscribe(self, node: str, subscription: int) -> None:
        """End a subscription."""
        self._check(node)
        driver, inbox = self._nodes[node]
        inbox.unsubscribe(driver, subscription)

    def deliveries(self, node: str) -> list[DeliveredMessage]:
        """Return the deliveries to the application of `node` so far, oldest first; crashes do not shorten it."""
        self._find(node)
        return list(self._nodes[node][1].deliveries)

    def confirm(self, node: str, messages: Iterable[MessageId | DeliveredMessage]) -> None:
        """Confirm deliveries, or their ids, in a network that was made with ``confirm=False``."""
        driver = self._checked(node)
        driver.command().confirm(message_ids(messages), driver.now)
        driver.drain()

    def emit(
        self,
        node: str,
        channel: str,
        payload: bytes | Blank = b"",
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        lifetime_s: float | None = None,
    ) -> MessageId:
        """Send an event to a channel as the application of `node`; return its id. Needs `overlay.enabled`."""
        driver = self._checked(node)
        lifetime_us = None if lifetime_s is None else microseconds(lifetime_s, "lifetime_s")
        overlay = driver.command().overlay
        message = overlay.emit(channel, payload, driver.now, attributes=attributes, lifetime_us=lifetime_us)
        driver.report_published()
        driver.drain()
        return message

    def consume(
        self, node: str, channel: str, modulator: Modulator | None = None, *, relocation: str = "strict"
    ) -> str:
        """Subscribe to a channel as the application of `node`, over restarts, too. Needs `overlay.enabled`.

        Returns the destination of the results, which are among the `deliveries`.
        """
        driver, inbox = self._checked(node), self._nodes[node][1]
        destination = driver.command().overlay.consume(channel, driver.now, modulator, relocation=relocation)
        inbox.subscribe(driver, exactly(destination))
        return destination

    def open_messaging(self) -> None:
        """Open messaging (`net.host(node).messaging`) on every node, now and whenever one starts. May be called again.

        Hand-overs to consumers and the outcomes of commands are events, which `watch` reports.
        """
        self._check()
        self._messaging = True
        for driver, inbox in self._nodes.values():
            inbox.open_messaging(driver)

    def payload(self, node: str, descriptor: Descriptor) -> bytes:
        """Return the payload, as published, of a message that `node` has; it is read from the store."""
        return self._checked(node).stored(descriptor)

    # ---------------------------------------------------------------------------------------- what happened

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher(seconds, node, event)` for every event of every host from now on."""
        check_callable("a watcher", watcher)
        self._watchers.append(watcher)

    def traffic(self, a: str, b: str) -> Traffic:
        """Return the traffic from `a` that `b` could hear: datagrams, bytes, frames by kind, and their fates."""
        self._find(a, b)
        return self._radio.traffic(a, b)

    def sent(self, node: str) -> Traffic:
        """Return the traffic from `node` in all; a broadcast counts once."""
        self._find(node)
        return self._radio.sent(node)

    # -------------------------------------------------------------------------------------------- by itself

    def _make(self, name: str, settings: Settings, privilege: Privilege | None = None) -> None:
        check_name(name)
        check_callable("privilege", privilege := privilege or self._options.privilege)
        if name in self._nodes:
            raise LocalError(f"there is a node {name!r} already")
        inbox = InboxApplication(confirm=self._options.confirm, watch=self._observe)
        driver = EmulatedDriver(name, settings, self._environment, inbox, privilege=privilege)
        driver.disk.delay_us = self._options.disk_delay_us
        if self._messaging:
            inbox.open_messaging(driver)
        self._nodes[name] = driver, inbox

    def _boot(self, name: str) -> None:
        self._note(Kind.JOIN, name)
        self._driver(name).boot()

    def _checked(self, node: str) -> EmulatedDriver:
        """Return the driver of a node, in a network that is open."""
        self._check(node)
        return self._driver(node)

    def _driver(self, node: str) -> EmulatedDriver:
        return self._nodes[node][0]

    def _note(self, kind: Kind, node: str) -> None:
        if self._options.record is not None:
            self._options.record.add(kind, self._scheduler.now, node)

    def _observe(self, driver: EmulatedDriver, event: Event) -> None:
        if self._recorder is not None:
            self._recorder.observe(driver, event)
        for watcher in self._watchers:
            watcher(self.now, driver.name, event)

    def _begin(self, seconds: float) -> int:
        self._check()
        duration_us = microseconds(seconds)
        # Hosts may have been used directly (`host`): what they want to send since must not wait for
        # the next event.
        for driver, _ in self._nodes.values():
            if driver.state is NodeState.RUNNING:
                driver.drain()
        return duration_us

    def _check(self, *names: str) -> None:
        if self._state != "open":
            raise StateError(f"this network is {self._state}")
        self._find(*names)

    def _find(self, *names: str) -> None:
        for name in names:
            check_name(name)
            if name not in self._nodes:
                near = difflib.get_close_matches(str(name), self._nodes, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self._nodes) or 'none'}"
                raise LocalError(f"no node {name!r} in this network; {hint}")


def _virtual_loop() -> VirtualLoop | None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop if isinstance(loop, VirtualLoop) else None


def play(contacts: Iterable[Contact], scheduler: Scheduler, radio: Radio, record: Record | None) -> None:
    """Play contacts on a radio from now on; their times count from the present."""

    def up(a: str, b: str, end_us: int, heard: str) -> None:
        if record is not None:
            attrs = {"end": repr(end_us / MICROSECONDS)} if end_us < FOREVER_US else {}
            record.add(Kind.CONTACT, scheduler.now, a, peer=b, attrs=attrs | ({HEARD: heard} if heard else {}))
        for way in ((a, b), (b, a)):
            if heard in {"", way[0]} and not radio.linked(*way):
                radio.link(*way, one_way=True)

    def down(a: str, b: str) -> None:
        for way in ((a, b), (b, a)):
            if radio.linked(*way):
                radio.unlink(*way, one_way=True)

    for a, b, start_us, end_us, heard in contacts:
        scheduler.post(scheduler.now + start_us, Phase.UP, a, up, a, b, end_us, heard)
        if end_us < FOREVER_US:
            scheduler.post(scheduler.now + end_us, Phase.DOWN, a, down, a, b)
