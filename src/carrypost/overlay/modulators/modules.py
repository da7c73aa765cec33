"""WebAssembly modules between clients and brokers.

A client keeps the modules of its own subscriptions in the store (`OwnModules`). A broker that has to run one asks the
client for it (`ModuleWanted`). The client publishes it, signed, to `module/SHA256`, and passes it on to the broker as a
leg; no other node is offered it. The broker (`Modules`) reads it, compares the digest, and lets the driver compile it
(`CompileWanted`), one at a time, because compiling takes as long as the author wants. Programs are kept by digest, as
many as `limits.modules_max`, and so are refusals, so that no client has the same module compiled again and again.

The one invariant: a program is of bytes whose SHA-256 the consumer named, and that a node signed which
`overlay.modulators` and `overlay.authors` allow.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import LocalError
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.cache import LOG
from carrypost.log.events import LayerEvent, PayloadWanted
from carrypost.model import address
from carrypost.overlay.items import ModuleWanted, Outbox
from carrypost.overlay.modulators import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from carrypost.application.ledger import Ledger
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.ids import MessageId, NodeId
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.modulators.modulator import Modulator
    from carrypost.overlay.modulators.registry import Program

FAMILY = b"M"
"""First byte of the names of rows: a client's own modules, by digest."""
_LIFETIME_US = 600_000_000
"""Lifetime of a module that is on its way to a broker."""
_ASK_US = 5_000_000
"""Time after which a client that does not send a module is asked again, and may be answered again."""


class CompileWanted(LayerEvent, frozen=True):
    """A broker wants a module compiled: the driver does so outside of the host, and calls `host.overlay.compiled`."""

    digest: bytes
    module: bytes


class _State(enum.Enum):
    """Progress of a module at a broker."""

    WANTED = enum.auto()
    QUEUED = enum.auto()
    COMPILING = enum.auto()
    READY = enum.auto()
    REFUSED = enum.auto()


class _Entry(msgspec.Struct, eq=False):
    """A module that a broker wants, has or refuses."""

    client: NodeId
    """Node that was asked for it, and whose turn it is to have something compiled."""
    state: _State = _State.WANTED
    ask_us: int = 0
    """Time at which the client may be asked again."""
    copy: Copy | None = None
    """The leg that has it, while its payload is read."""
    module: bytes = b""
    """The module, until it is compiled."""
    program: Program | None = None
    refusal: str = ""
    unread: bool = False
    """True if the refusal rests on the word of its client, and not on the module's bytes."""


class Modules:
    """The modules of one broker."""

    def __init__(self, context: HostContext, legs: Legs, outbox: Outbox) -> None:
        overlay, self._limits = context.settings.overlay, context.limits
        self._allowed, self._authors = overlay.modulators, frozenset(overlay.authors)
        if overlay.broker and self._allowed != "named":
            programs.is_installed()  # Importing wasmtime takes 80 ms: too long for when the first client comes.
        self._outputs, self._legs, self._outbox = context.outputs, legs, outbox
        self._entries: dict[bytes, _Entry] = {}
        """Modules by digest, in the order of their last use."""
        self._spent_us: dict[NodeId, int] = {}
        """Time that was spent on compiling modules of a node; the node with the least is next."""
        self.settled = False
        """True if a program became ready or was refused since this was last set to False."""

    def program(
        self, modulator: Modulator, client: NodeId, now: int, used: Callable[[], Container[bytes]]
    ) -> Program | None:
        """Return the program of a modulator; None if it has to be fetched or compiled first.

        `used`: digests of the programs at work. Raises `LocalError` if it does not run here, whatever is fetched.
        """
        # Removed and entered again below, so that the dict is in the order of the last use.
        entry = self._entries.pop(modulator.digest, None)
        if entry is None or (entry.unread and entry.client != client):
            self._check(client)
            self._make_room(client, used)
            entry = _Entry(client)
        self._entries[modulator.digest] = entry
        if entry.state is _State.REFUSED:
            raise LocalError(entry.refusal)
        if entry.state is _State.WANTED and entry.ask_us <= now:
            entry.client, entry.ask_us = client, now + _ASK_US
            self._outbox.add(client, ModuleWanted(modulator.digest))
        return entry.program

    def _check(self, client: NodeId) -> None:
        """Raise `LocalError` unless modules of a client may run here."""
        if self._allowed == "named":
            raise LocalError('this broker runs registered modulators only (overlay.modulators = "named")')
        if not programs.is_installed():
            raise LocalError("this broker cannot run WebAssembly modules: pip install 'carrypost[wasm]' there")
        if not self._trusts(client):
            raise LocalError('this broker runs modules of listed authors only (overlay.modulators = "trusted")')

    def _trusts(self, author: NodeId) -> bool:
        return self._allowed == "any" or author in self._authors

    def _make_room(self, client: NodeId, used: Callable[[], Container[bytes]]) -> None:
        """Forget a module that is idle, or one that waits for the compiler, of the node that has most of those."""
        if len(self._entries) < self._limits.modules_max:
            return
        at_work = used()
        # Refusals, unused programs and modules that have not come yet go first, the longest unused
        # one before others. A module that waits for the compiler is dropped only for a client that
        # has fewer of them.
        idle = [each for each, entry in self._entries.items() if each not in at_work and not entry.module]
        if not idle:
            queued = [(each, entry.client) for each, entry in self._entries.items() if entry.state is _State.QUEUED]
            counts = Counter(node for _, node in queued)
            greedy, count = max(counts.items(), key=lambda each: each[1], default=(client, 0))
            idle = [each for each, node in queued if node == greedy and count > counts[client] + 1][-1:]
        if not idle:
            raise LocalError(f"this broker has {self._limits.modules_max} modules at work (limits.modules_max)")
        if (copy := self._entries.pop(idle[0]).copy) is not None:
            self._legs.release(copy)

    # --- arrival -------------------------------------------------------------------------------------------

    def arrived(self, copies: Iterable[Copy]) -> None:
        """Have modules read that this broker wants, and refuse all others."""
        for copy in copies:
            original = copy.descriptor.original
            entry = self._entries.get(address.module_of(original.destination) or b"")
            # Bytes with the right hash may come from any node. The author of the message counts as
            # the author of the module, since it is the one that vouches for it.
            wanted = entry is not None and entry.state is _State.WANTED and self._trusts(original.node)
            is_large = original.size > self._limits.module_bytes_max
            # A module that is too long is not read, so that its digest is not known. A refusal for
            # all clients would let one of them keep others from a module, by its digest alone.
            if entry is None or not wanted or (is_large and (original.node != entry.client or entry.copy is not None)):
                self._outputs.refuse("module", original.node, copy.descriptor.shown)
            elif is_large:
                entry.unread = True
                most = f"{self._limits.module_bytes_max:,} (limits.module_bytes_max)"
                self._refuse(entry, f"the module has {original.size:,} bytes, and this broker accepts at most {most}")
            elif entry.copy is None:
                entry.copy = copy
                self._legs.hold(copy)
                self._outputs.emit(PayloadWanted(copy.descriptor))

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Process a module that was read."""
        for digest, entry in self._entries.items():
            if entry.copy is copy:
                entry.copy = None
                self._legs.release(copy)
                if not isinstance(payload, bytes) or hashlib.sha256(payload).digest() != digest:
                    self._outputs.refuse("module", copy.descriptor.original.node, copy.descriptor.shown)
                else:
                    entry.module, entry.state = payload, _State.QUEUED
                    self._compile_next()
                return

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget legs that are gone: modules are asked for again."""
        for entry in self._entries.values() if self._entries else ():
            if entry.copy is not None and any(entry.copy is copy for copy in copies):
                entry.copy = None

    # --- compiling -----------------------------------------------------------------------------------------

    def _compile_next(self) -> None:
        """Have one module compiled, of the node for which least was done so far."""
        # One at a time, as a small module may take seconds to compile (`overlay.modulators.wasm.compiled`),
        # and a client with many of them must not occupy every processor.
        if any(entry.state is _State.COMPILING for entry in self._entries.values()):
            return
        waiting = [(digest, entry) for digest, entry in self._entries.items() if entry.state is _State.QUEUED]
        if waiting:
            digest, entry = min(waiting, key=lambda each: self._spent_us.get(each[1].client, 0))
            entry.state = _State.COMPILING
            self._outputs.emit(CompileWanted(digest, entry.module))

    def compiled(self, digest: bytes, code: bytes, refusal: str, took_us: int) -> None:
        """Process the machine code of a module, or the reason why there is none."""
        entry = self._entries.get(digest)
        if entry is None or entry.state is not _State.COMPILING:
            return
        # Cleared as a whole, which bounds the table: all clients begin anew as equals.
        if len(self._spent_us) >= self._limits.clients_max:
            self._spent_us.clear()
        self._spent_us[entry.client] = self._spent_us.get(entry.client, 0) + took_us
        try:
            if refusal:
                raise LocalError(refusal)  # noqa: TRY301 - one place for both refusals
            entry.program = programs.program(code, self._limits)
            entry.state, entry.module, self.settled = _State.READY, b"", True
        except LocalError as error:
            self._refuse(entry, str(error))
        self._compile_next()

    def _refuse(self, entry: _Entry, reason: str) -> None:
        entry.state, entry.module, entry.refusal, self.settled = _State.REFUSED, b"", reason, True


class OwnModules:
    """The modules of this node's own subscriptions."""

    def __init__(self, context: HostContext, legs: Legs, ledger: Ledger) -> None:
        self._node, self._holdings, self._outputs = context.node, context.holdings, context.outputs
        self._legs, self._ledger = legs, ledger
        self._bytes_max = context.limits.module_bytes_max
        self._modules: dict[bytes, bytes] = {}
        """Modules by digest; as many as subscriptions use."""
        self._asked: dict[bytes, dict[NodeId, None]] = {}
        """Brokers that a module has to be passed on to, once it is published."""
        self._published: dict[bytes, MessageId] = {}
        self._answered: dict[tuple[bytes, NodeId], int] = {}
        """Time at which a broker may be answered again; bounded by the brokers that are known, which alone may ask."""

    def restore(self, name: bytes, row: bytes) -> None:
        """Restore a module after a restart."""
        self._modules[name[len(FAMILY) :]] = row

    def add(self, modulator: Modulator | None) -> None:
        """Keep the module of a subscription that is to be opened; raises `LocalError` if there is none."""
        if modulator is None or not modulator.digest:
            return
        module = modulator.module or self._modules.get(modulator.digest, b"")
        if hashlib.sha256(module).digest() != modulator.digest:
            raise LocalError(
                "the module of this modulator is missing, or does not match its digest: create the modulator with "
                "Modulator.wasm()"
            )
        if len(module) > self._bytes_max:
            raise LocalError(
                f"the module has {len(module):,} bytes, more than {self._bytes_max:,} (limits.module_bytes_max): build "
                "it for size, and strip it"
            )
        if modulator.digest not in self._modules:
            self._modules[modulator.digest] = module
            self._ledger.put(FAMILY + modulator.digest, module)

    def keep(self, used: Container[bytes]) -> None:
        """Forget the modules that no subscription uses any more."""
        for digest in [each for each in self._modules if each not in used]:
            del self._modules[digest]
            self._published.pop(digest, None)
            self._ledger.delete(FAMILY + digest)

    def wanted(self, item: ModuleWanted, broker: NodeId, now: int) -> bool:
        """Answer a broker that wants a module; returns False if no subscription uses it."""
        if item.digest not in self._modules:
            return False
        # A module is up to `module_bytes_max` long and the question is short: a broker that asks
        # again and again would otherwise fill the air at the client's cost.
        self._answered = {each: until_us for each, until_us in self._answered.items() if until_us > now}
        if self._answered.setdefault((item.digest, broker), now + _ASK_US) >= now + _ASK_US:
            self._asked.setdefault(item.digest, {})[broker] = None
        return True

    def drafts(self) -> list[Draft]:
        """Return the modules to publish; pass on those that are published already."""
        drafts = []
        for digest in list(self._asked):
            message = self._published.get(digest)
            copy = None if message is None else self._holdings.cache.get(message)
            if copy is not None and copy.here and copy.whole:
                self._pass(copy, self._asked.pop(digest))
            elif digest in self._modules:
                drafts.append(Draft(address.module(digest), self._modules[digest], lifetime_us=_LIFETIME_US))
            else:
                del self._asked[digest]
        return drafts

    def published(self, copies: Sequence[Copy]) -> None:
        """Pass on modules that were published."""
        for copy in copies if self._asked else ():
            digest = address.module_of(copy.descriptor.destination)
            if digest in self._asked:
                self._published[digest] = copy.id
                # Withheld, so that gossip does not offer it: only the brokers that asked get it, as
                # a leg.
                self._holdings.withhold(copy, LOG)
                self._pass(copy, self._asked.pop(digest))

    def _pass(self, copy: Copy, brokers: Iterable[NodeId]) -> None:
        for broker in brokers:
            try:
                self._legs.send(copy, [broker])
            except LocalError:  # It is not known as a broker any more.
                self._outputs.refuse("module", broker, copy.descriptor.shown)
