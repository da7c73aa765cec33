"""Relocation: the protocol by which the seat of a consumer moves from one broker to another (OVERLAY §2.4, step 3).

Snapshots of seats, by which their state travels, are at the end.
"""
# Theory of operation
# -------------------
# The eight steps of the paper, each an item (`overlay.items`) or an action of a seat:
#
#     1  source -> destination          Handoff
#     2  destination -> source          Ready, or a refusal
#     3  source -> homes of producers   Detour; the consumer is informed, too: Moving
#     4  homes -> source                Detoured: the last event that went to the source alone
#     5  source                         processes events up to those numbers
#     6  destination                    keeps the events that come
#     7  source -> destination          State: the modulator's state, the cursors, the last result
#     8  destination                    processes what it kept; Attached to the consumer, which leaves the source
#
# A destination that has other seats of the channel gets its events in any case. Then `Ready` has
# the numbers of step 4: those of the last events that came before the destination kept them for the
# seat. Steps 3 and 4 are left out.
#
# The problem. The paper assumes channels that neither lose nor reorder. Here both happen, and any
# broker can vanish at any moment. The obvious repair, a transaction between two brokers, blocks
# both while they cannot reach each other, which is the usual reason for a move. So an
# acknowledgement names the last event of the old path, everything is repeated until it is answered,
# and the same question gets the same answer. If the destination vanishes, the source keeps the
# seat. If the source vanishes, the consumer has another broker adopt its seat, from a checkpoint.
# The consumer decides which seat counts, so that two seats at once do no harm.
#
# Both sides are tables: (state, input) -> actions, next state. An input that the table does not
# list changes nothing, and is counted by the caller. Nothing here sends, stores or reads a clock:
# `Source` and `Destination` are given their inputs, and return the actions for the seat.
#
# What must hold
# --------------
# 1. A source that has sent the state works no more, whatever happens, until it hears that the seat
#    is elsewhere. So it must not send the state before a row says that it did (`MOVED` survives a
#    restart). Two seats that both work would give results of the same numbers from different
#    events.
# 2. A lost or silent home does not hold up a relocation: the source stops at the events that it
#    has, and the new seat asks for the rest.
# 3. A lost destination ends it, unless the state is on its way.
# 4. A seat moves on only once the consumer has confirmed it. So a chain of seats that an adoption
#    left behind has at most one epoch more than the consumer knew, and an adoption, which adds two,
#    is above all of them.
#
# Read on in `handoffs` (the actions of both sides), `detours` (the homes' part) and `consumers`
# (epochs).

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Generic, NamedTuple, TypeVar

import msgspec

from carrypost.errors import DecodeError, LimitError
from carrypost.gossip.wire.pieces import Blank
from carrypost.model.headers import DESTINATION_MAX
from carrypost.model.ids import NodeId, is_node_id
from carrypost.model.times import NEVER, TIME_US_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from carrypost.config import Limits
    from carrypost.config.settings import Overlay
    from carrypost.overlay.modulators.modulator import Modulator

FIRST_REPEAT_US = 1_000_000
"""Delay of the first repetition of an unanswered item; each later one is twice as long."""


class Action(enum.Enum):
    """Action of one side: an item that it sends, or something that its seat does."""

    HANDOFF = "Handoff"
    """To the destination."""
    READY = "Ready"
    """To the source: the client is listed, and events for its seat are kept."""
    MOVING = "Moving"
    """To the consumer."""
    DETOUR = "Detour"
    """To the homes of producers that have not answered."""
    DETOUR_BACK = "Detour back"
    """To all homes of producers that were asked, and to the destination: the seat stays."""
    STATE = "State"
    """To the destination."""
    ATTACHED = "Attached"
    """To the consumer."""
    NOTE_REFUSAL = "note the refusal"
    """The broker is not offered seats for a while."""
    STOP_AT_LAST = "stop at the last events"
    """Process the events of each producer up to the number that its home named; for a lost home up to those here."""
    SUSPEND = "work no more"
    """Keep a copy of the seat, and process nothing. Results are messages, and travel by themselves."""
    LOAD = "load the state"
    """Make the modulator, with state and cursors, and process the events that were kept."""
    FORGET = "forget"
    """Drop the seat, or what was kept for it."""


class SourceState(enum.Enum):
    """States of the source of a relocation."""

    SEATED = "seated"
    """The seat works here, and the consumer has confirmed it; nothing is under way."""
    OFFERED = "offered"
    """The destination was asked."""
    DETOURING = "detouring"
    """Homes of producers were asked."""
    DRAINING = "draining"
    """All homes have answered; the last events are processed."""
    MOVED = "moved"
    """The state is on its way. A copy is kept, and works no more."""
    GONE = "gone"
    """The seat is elsewhere."""


class SourceInput(enum.Enum):
    """Inputs of the source of a relocation."""

    MIGRATE = "migrate"
    """An adaptor wants the seat to move."""
    READY = "Ready"
    REFUSED = "refused"
    """`Ready` is a refusal."""
    DETOURED = "Detoured"
    """From a home, while others have not answered."""
    ALL_DETOURED = "all Detoured or lost"
    """From the last home; or the last one that had not answered is lost."""
    DRAINED = "drained"
    """Every lane is at its last event."""
    ELSEWHERE = "elsewhere"
    """The consumer leaves, because another seat counts for it."""
    DESTINATION_LOST = "destination lost"
    TIMEOUT = "timeout"
    """The state lasted too long (`SOURCE_STAYS`)."""
    RESTART = "restart"


class DestinationState(enum.Enum):
    """States of the destination of a relocation."""

    ABSENT = "absent"
    """There is no seat here, and none is expected."""
    EXPECTING = "expecting"
    """The client is listed, and its events are kept."""
    SEATED = "seated"
    """The seat works here, and the consumer has not confirmed it yet."""
    CONFIRMED = "confirmed"
    """The seat works here, and the consumer has confirmed it: it may move on."""


class DestinationInput(enum.Enum):
    """Inputs of the destination of a relocation."""

    HANDOFF = "Handoff"
    """A `Handoff` that passed all checks: origin, trust, limits, load, modulator. Others are refused by `Ready`."""
    STATE = "State"
    DETOUR_BACK = "Detour back"
    CONFIRMED = "confirmed"
    """The consumer names this seat."""
    ELSEWHERE = "elsewhere"
    """The consumer names another seat, of a higher epoch."""
    TIMEOUT = "timeout"
    """The state lasted too long (`DESTINATION_STAYS`)."""
    RESTART = "restart"


_State = TypeVar("_State", SourceState, DestinationState)
_Input = TypeVar("_Input", SourceInput, DestinationInput)
Actions = tuple[Action, ...]


class Transition(NamedTuple, Generic[_State]):
    """A row of a table: the actions, and the state that follows."""

    actions: Actions
    after: _State


_S, _M, _A = SourceState, SourceInput, Action
_LEAVE = (_A.STATE, _A.SUSPEND)
SOURCE_TABLE: Mapping[tuple[SourceState, SourceInput], Transition[SourceState]] = {
    # A seat that has nothing under way ignores everything except the wish to move: late answers to
    # an earlier relocation must not start a new one.
    (_S.SEATED, _M.MIGRATE): Transition((_A.HANDOFF,), _S.OFFERED),
    (_S.SEATED, _M.RESTART): Transition((), _S.SEATED),
    (_S.OFFERED, _M.READY): Transition((_A.MOVING, _A.DETOUR), _S.DETOURING),
    (_S.OFFERED, _M.REFUSED): Transition((_A.NOTE_REFUSAL,), _S.SEATED),
    (_S.OFFERED, _M.DESTINATION_LOST): Transition((_A.NOTE_REFUSAL,), _S.SEATED),
    (_S.OFFERED, _M.TIMEOUT): Transition((_A.NOTE_REFUSAL,), _S.SEATED),
    (_S.OFFERED, _M.RESTART): Transition((), _S.SEATED),
    # A repeated answer of one home is no progress, and no fault.
    (_S.DETOURING, _M.DETOURED): Transition((), _S.DETOURING),
    # The order matters: the homes detour new events first, so that none falls between the last
    # event of the source and the first of the destination.
    (_S.DETOURING, _M.ALL_DETOURED): Transition((_A.STOP_AT_LAST,), _S.DRAINING),
    # Nothing was sent that could not be taken back. The homes are asked to send everything to the
    # source alone again.
    (_S.DETOURING, _M.DESTINATION_LOST): Transition((_A.DETOUR_BACK,), _S.SEATED),
    # Homes that do not answer count as lost: the new seat asks their producers for the rest. If the
    # seat stayed, one of them would keep all seats of its channel where they are.
    (_S.DETOURING, _M.TIMEOUT): Transition((_A.STOP_AT_LAST,), _S.DRAINING),
    (_S.DETOURING, _M.RESTART): Transition((), _S.SEATED),
    (_S.DRAINING, _M.DRAINED): Transition(_LEAVE, _S.MOVED),
    # With the cursors as they are: the new seat asks for the rest.
    (_S.DRAINING, _M.TIMEOUT): Transition(_LEAVE, _S.MOVED),
    (_S.DRAINING, _M.DESTINATION_LOST): Transition((_A.DETOUR_BACK,), _S.SEATED),
    (_S.DRAINING, _M.RESTART): Transition((), _S.SEATED),
    # Two ways to learn that the move is over: the consumer leaves, or it reports nothing for so long
    # that it has had another broker adopt the seat, or is out of reach.
    (_S.MOVED, _M.ELSEWHERE): Transition((_A.FORGET,), _S.GONE),
    (_S.MOVED, _M.TIMEOUT): Transition((_A.FORGET,), _S.GONE),
    # One that worked again would give results of the same numbers as the new seat, of other events.
    (_S.MOVED, _M.RESTART): Transition((_A.STATE,), _S.MOVED),
}
"""The source of a relocation that detours events."""
SHORT_SOURCE_TABLE: Mapping[tuple[SourceState, SourceInput], Transition[SourceState]] = {
    **{key: step for key, step in SOURCE_TABLE.items() if key[0] not in {_S.DETOURING, _S.DRAINING}},
    (_S.OFFERED, _M.READY): Transition((_A.MOVING, *_LEAVE), _S.MOVED),
}
"""The source of a relocation that leaves out steps 3 to 6."""
SOURCE_REPEATS = {_S.OFFERED: _A.HANDOFF, _S.DETOURING: _A.DETOUR, _S.MOVED: _A.STATE}
"""Action that is repeated as long as a state lasts."""

_D, _N = DestinationState, DestinationInput
DESTINATION_TABLE: Mapping[tuple[DestinationState, DestinationInput], Transition[DestinationState]] = {
    (_D.ABSENT, _N.HANDOFF): Transition((_A.READY,), _D.EXPECTING),
    (_D.EXPECTING, _N.HANDOFF): Transition((_A.READY,), _D.EXPECTING),
    (_D.EXPECTING, _N.STATE): Transition((_A.LOAD, _A.ATTACHED), _D.SEATED),
    (_D.EXPECTING, _N.DETOUR_BACK): Transition((_A.FORGET,), _D.ABSENT),
    (_D.EXPECTING, _N.ELSEWHERE): Transition((_A.FORGET,), _D.ABSENT),
    (_D.EXPECTING, _N.TIMEOUT): Transition((_A.FORGET,), _D.ABSENT),
    # Events that were kept are gone with the memory of the process. The source repeats its offer,
    # or gives up.
    (_D.EXPECTING, _N.RESTART): Transition((_A.FORGET,), _D.ABSENT),
    # The source was restarted. The state is not loaded twice.
    (_D.SEATED, _N.STATE): Transition((), _D.SEATED),
    (_D.SEATED, _N.CONFIRMED): Transition((), _D.CONFIRMED),
    (_D.SEATED, _N.ELSEWHERE): Transition((), _D.ABSENT),
    # The consumer may have missed `Attached`, and waits for results of a home that it does not know
    # yet.
    (_D.SEATED, _N.RESTART): Transition((_A.ATTACHED,), _D.SEATED),
}
"""The destination of a relocation."""
DESTINATION_REPEATS = {_D.SEATED: _A.ATTACHED}
"""As `SOURCE_REPEATS`. The consumer accepts `Attached` only after `Moving`, which may arrive later."""


class Variant(NamedTuple):
    """A relocation protocol. Lighter ones give something up."""

    state: bool
    """True: the modulator's state moves along. False: it begins empty."""
    detours: bool
    """True: no event is lost. False: steps 3 to 6 are left out, and the new seat asks for nothing that it missed."""


VARIANTS = {
    "strict": Variant(state=True, detours=True),
    "stateless": Variant(state=False, detours=True),
    "lossy": Variant(state=True, detours=False),
    "light": Variant(state=False, detours=False),
}


class Stay(NamedTuple):
    """The longest time that a state lasts, in multiples of two settings."""

    handoffs: int = 0
    gaps: int = 0

    def us(self, patience: Overlay) -> int:
        """Return the time in microseconds: `handoff_s` and `gap_s` of the settings, as often as that."""
        return round((self.handoffs * patience.handoff_s + self.gaps * patience.gap_s) * 1e6)


SOURCE_STAYS = {
    _S.OFFERED: Stay(handoffs=1), _S.DETOURING: Stay(handoffs=1), _S.DRAINING: Stay(gaps=1), _S.MOVED: Stay(handoffs=2)
}  # fmt: skip
DESTINATION_STAYS = {_D.EXPECTING: Stay(handoffs=2, gaps=1)}
"""Longest stay in a state: as long as the source may take until it sends its own answer."""


class HandoffId(NamedTuple):
    """The name of one relocation, which every item of it has."""

    source: NodeId
    epoch: Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
    """Epoch of the seat at the source; that of the new seat is the next one."""
    counter: Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
    """Number of the relocation at the source."""


class _Side(Generic[_State, _Input]):
    """One side of a relocation: its state, the time at which that ends, and the action repeated until then."""

    _timeout: _Input
    _table: Mapping[tuple[_State, _Input], Transition[_State]]
    _stays: Mapping[_State, Stay]
    _repeats: Mapping[_State, Action]

    def __init__(self, handoff: HandoffId, state: _State, patience: Overlay, now: int) -> None:
        self.handoff, self._patience = handoff, patience
        self._enter(state, now)

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        return min(self._end_us, self._repeat_us)

    def _enter(self, state: _State, now: int) -> None:
        self.state: _State = state
        stay = self._stays.get(state)
        self._end_us = NEVER if stay is None else now + stay.us(self._patience)
        self._delay_us = FIRST_REPEAT_US
        self._repeat_us = now + self._delay_us if state in self._repeats else NEVER

    def handle(self, what: _Input, now: int) -> Actions | None:
        """Process an input, and return the actions; None if the table does not list the input, and nothing changed."""
        step = self._table.get((self.state, what))
        if step is None:
            return None
        if step.after is not self.state:
            self._enter(step.after, now)
        return step.actions

    def expire(self, now: int) -> Actions:
        """End a state that lasted too long, or repeat an unanswered item."""
        if self._end_us <= now:
            return self.handle(self._timeout, now) or ()
        if self._repeat_us <= now:
            self._delay_us *= 2
            self._repeat_us = now + self._delay_us
            return (self._repeats[self.state],)
        return ()


class Source(_Side[SourceState, SourceInput]):
    """The source of one relocation. Inputs by authors that have no part in it are not listed."""

    _timeout, _stays, _repeats = SourceInput.TIMEOUT, SOURCE_STAYS, SOURCE_REPEATS

    def __init__(
        self, handoff: HandoffId, to: NodeId, variant: Variant, patience: Overlay, now: int, *, moved: bool = False
    ) -> None:
        """Begin with a working seat; `moved`: one whose state was on its way before a restart."""
        self._table = SOURCE_TABLE if variant.detours else SHORT_SOURCE_TABLE
        super().__init__(handoff, SourceState.MOVED if moved else SourceState.SEATED, patience, now)
        self.to, self.variant = to, variant
        self.homes: frozenset[NodeId] = frozenset()
        """Homes of producers that were asked."""
        self.waiting: set[NodeId] = set()
        """Homes of producers that have not answered."""
        self.last: dict[NodeId, int] = {}
        """By producer: the number of the last event that its home sent to the source alone."""

    @property
    def is_over(self) -> bool:
        """True if the seat stays here, or is elsewhere."""
        return self.state in {SourceState.SEATED, SourceState.GONE}

    def answered(self, author: NodeId, what: SourceInput, now: int) -> Actions | None:
        """Process the destination's answer: READY by way of `ready`, or REFUSED."""
        return self.handle(what, now) if author == self.to else None

    def ready(
        self, author: NodeId, homes: Collection[NodeId], now: int, last: Mapping[NodeId, int] | None = None
    ) -> Actions | None:
        """Process the destination's consent; `homes`: those of the channel's producers, by the present rosters.

        `last`: the destination gets the events after these, so that homes need not be asked.
        """
        actions = self.answered(author, SourceInput.READY, now)
        if actions is None or self.state is not SourceState.DETOURING:
            return actions
        if last is None:
            self.homes, self.waiting = frozenset(homes), set(homes)
        else:
            self.last.update(last)
        return actions + self._all_detoured(now)

    def detoured(self, home: NodeId, last: Mapping[NodeId, int], now: int) -> Actions | None:
        """Process the answer of a home: the numbers of the last events of its producers."""
        if home in self.waiting:
            self.waiting.remove(home)
            self.last.update(last)
            return self._all_detoured(now)
        return self.handle(SourceInput.DETOURED, now) if home in self.homes else None

    def lost(self, broker: NodeId, now: int) -> Actions | None:
        """Note that a broker cannot be reached any more."""
        if broker == self.to:
            return self.handle(SourceInput.DESTINATION_LOST, now)
        self.waiting.discard(broker)
        return self._all_detoured(now)

    def _all_detoured(self, now: int) -> Actions:
        waits = self.state is not SourceState.DETOURING or self.waiting
        return () if waits else self.handle(SourceInput.ALL_DETOURED, now) or ()

    def worked(self, cursors: Mapping[NodeId, int], now: int) -> Actions:
        """Note the progress of the seat; leave once it has processed the last events."""
        if self.state is not SourceState.DRAINING:
            return ()
        behind = any(cursors.get(producer, 0) < number for producer, number in self.last.items())
        return () if behind else self.handle(SourceInput.DRAINED, now) or ()


class Destination(_Side[DestinationState, DestinationInput]):
    """The destination of one relocation."""

    _timeout, _table = DestinationInput.TIMEOUT, DESTINATION_TABLE
    _stays, _repeats = DESTINATION_STAYS, DESTINATION_REPEATS

    def __init__(self, handoff: HandoffId, patience: Overlay, now: int, *, seated: bool = False) -> None:
        """Begin without a seat; `seated`: with one that the consumer had not confirmed before a restart."""
        super().__init__(handoff, DestinationState.SEATED if seated else DestinationState.ABSENT, patience, now)

    @property
    def is_over(self) -> bool:
        """True if the consumer has confirmed the seat, or it is not here."""
        return self.state in {DestinationState.ABSENT, DestinationState.CONFIRMED}

    def handle_source(self, author: NodeId, what: DestinationInput, now: int) -> Actions | None:
        """Process an item of the source: HANDOFF, STATE or DETOUR_BACK."""
        return self.handle(what, now) if author == self.handoff.source else None


# --- snapshots ---------------------------------------------------------------------------------------------

# Snapshots: the state of a seat as it travels, as the payload of a message.
#
# A checkpoint of a seat has one for its consumer, `State` one for the broker that the seat moves
# to, and `Attach` one for the broker that takes over a seat whose home is lost. The last one also
# names the events that the consumer accepted since its checkpoint, in their order, for the new home
# to process again without results.
#
# The one invariant: a payload that breaks a bound, or contradicts itself, is refused as a whole
# (`snapshot`).
#
# Snapshots come from other brokers, or by way of the consumer, so that their size and contents are
# a stranger's. Names of producers are listed once and referred to by place: a consumer of many
# producers has each of them in cursors and runs. The digest of the modulator is compared before its
# state is used, as a state means nothing to another modulator.


_DIGEST_BYTES = 8
_HEAD_BYTES, _RUN_BYTES = 128, 32
"""Upper bounds of the bytes around a state, and of a run."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
Run = tuple[str, int, int]
"""Events of one producer that were processed one after the other: producer, number before the first, and of the last.
"""


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a seat between two events."""

    epoch: int
    number: int
    """Number of its last result."""
    cursors: Mapping[str, int]
    """Number of the last event that it processed, by producer."""
    state: bytes = b""
    """State of the modulator after these events."""
    modulator: bytes = b""
    """Digest of the state's modulator (`digest`); empty: there is no state."""
    runs: Sequence[Run] = ()
    """Events since the last result, in the order of processing, which `cursors` and `state` include; a run without
    events says where a gap begins."""
    repeats: Sequence[Run] = ()
    """Events after these, in the order in which the consumer accepted their results."""
    discarded: int = 0
    """Number of results of the events in `runs` that the modulator refused to keep."""
    lacks: Mapping[str, int] = {}
    """Number of events, by producer, that a new home could not process again, so that the state lacks them since the
    last checkpoint. The consumer has their results."""
    since_us: int = 0
    """Time from which on events of other producers count; 0: since the consumer subscribed."""


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    epoch: _Count
    number: _Count
    producers: tuple[_Name, ...]
    """Ids of nodes; the other fields refer to them by index."""
    cursors: tuple[tuple[_Count, _Count], ...]
    runs: tuple[tuple[_Count, _Count, _Count], ...]
    repeats: tuple[tuple[_Count, _Count, _Count], ...]
    modulator: Annotated[bytes, msgspec.Meta(max_length=_DIGEST_BYTES)]
    state: bytes
    discarded: _Count = 0
    lacks: tuple[tuple[_Count, _Count], ...] = ()
    since_us: _Count = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Wire).decode


def digest(modulator: Modulator | None) -> bytes:
    """Return bytes that identify a modulator, its version and its parameters; empty without a modulator."""
    if modulator is None:
        return b""
    return hashlib.blake2b(_encode(modulator.reference), digest_size=_DIGEST_BYTES).digest()


def extended(runs: list[Run], run: Run) -> list[Run]:
    """Return runs with one more event, or run of events, after them."""
    if runs and runs[-1][0] == run[0] and runs[-1][2] == run[1]:
        return [*runs[:-1], (run[0], runs[-1][1], run[2])]
    return [*runs, run]


def packed(snapshot: Snapshot) -> bytes:
    """Return a snapshot as it travels."""
    names = [*snapshot.cursors, *(run[0] for run in (*snapshot.runs, *snapshot.repeats)), *snapshot.lacks]
    places = {name: at for at, name in enumerate(dict.fromkeys(names))}
    runs, repeats = (
        tuple([(places[producer], after, upto) for producer, after, upto in each])
        for each in (snapshot.runs, snapshot.repeats)
    )
    cursors, lacks = (
        tuple([(places[producer], number) for producer, number in each.items()])
        for each in (snapshot.cursors, snapshot.lacks)
    )
    wire = _Wire(
        snapshot.epoch, snapshot.number, tuple(places), cursors, runs, repeats, snapshot.modulator, snapshot.state,
        snapshot.discarded, lacks, snapshot.since_us,
    )  # fmt: skip
    return _encode(wire)


def bytes_max(limits: Limits) -> int:
    """Return the length of the longest snapshot that is read."""
    around = limits.clients_max * (DESTINATION_MAX + _RUN_BYTES) + limits.runs_max * _RUN_BYTES + _HEAD_BYTES
    return limits.modulator_state_bytes_max + around


def unpacked(payload: bytes | Blank, limits: Limits, *, signed: bool) -> Snapshot:
    """Return a snapshot that came from another node; raises `RemoteError` for anything else.

    `signed`: nodes have keys, so that producers are named by ids.
    """
    if isinstance(payload, Blank) or len(payload) > bytes_max(limits):
        raise LimitError("snapshot", "a snapshot is longer than any seat's state")
    try:
        wire = _decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise DecodeError("snapshot", f"not a snapshot: {error}") from error
    runs = len(wire.runs) + len(wire.repeats)
    if len(wire.producers) > limits.clients_max or runs > limits.runs_max:
        raise LimitError("snapshot", "a snapshot has more producers or runs than a seat may have")
    if len(wire.state) > limits.modulator_state_bytes_max:
        raise LimitError("snapshot", "a snapshot has a larger state than a modulator may have")
    if signed and not all(map(is_node_id, wire.producers)):
        raise DecodeError("snapshot", "a snapshot names a producer by a text that is not the id of a node")
    return _checked(wire)


def _checked(wire: _Wire) -> Snapshot:
    """Return the snapshot; raises `DecodeError` if its parts contradict each other."""
    if len(set(wire.producers)) < len(wire.producers):
        raise DecodeError("snapshot", "a snapshot names a producer twice")
    places = [at for at, *_ in (*wire.cursors, *wire.runs, *wire.repeats, *wire.lacks)]
    if any(at >= len(wire.producers) for at in places):
        raise DecodeError("snapshot", "a snapshot refers to a producer that it does not name")
    cursors, lacks = ({wire.producers[at]: number for at, number in each} for each in (wire.cursors, wire.lacks))
    if len(cursors) < len(wire.cursors) or len(lacks) < len(wire.lacks):
        raise DecodeError("snapshot", "a snapshot has two cursors, or two numbers of lacking events, of one producer")
    runs, repeats = (
        tuple([(wire.producers[at], after, upto) for at, after, upto in each]) for each in (wire.runs, wire.repeats)
    )
    last = _last(runs, {}, empty=True)
    if any(number > cursors.get(producer, 0) for producer, number in last.items()):
        raise DecodeError("snapshot", "a snapshot has events that its cursors do not include")
    _last(repeats, cursors)
    return Snapshot(
        wire.epoch, wire.number, cursors, wire.state, wire.modulator, runs, repeats, wire.discarded, lacks,
        wire.since_us,
    )  # fmt: skip


def _last(runs: Sequence[Run], cursors: Mapping[str, int], *, empty: bool = False) -> dict[str, int]:
    """Return where producers are after some runs; raises `DecodeError` if their numbers do not rise.

    `empty`: there may be runs without events.
    """
    found = dict(cursors)
    for producer, after, upto in runs:
        if not found.get(producer, 0) <= after < upto + empty:
            raise DecodeError("snapshot", "the numbers of a snapshot's events do not rise")
        found[producer] = upto
    return found
