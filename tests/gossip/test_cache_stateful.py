"""The cache against a model of plain dicts and sorted lists that recomputes everything from scratch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from carrypost.config import Limits, Settings
from carrypost.errors import StateError
from carrypost.gossip.holdings import eviction, memories
from carrypost.gossip.holdings.cache import DELIVERIES, ORDER, PUBLISHING, Cache
from carrypost.gossip.holdings.copies import DELIVERED, Copy
from carrypost.gossip.holdings.eviction import INTEREST_FIRST, PRIVILEGE_ONLY, Ranking
from carrypost.gossip.slots import bits
from carrypost.log.events import Reason
from carrypost.model.descriptor import PIECE_BYTES, Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER


class Way(TypedDict):
    """The ways in which a message comes in."""

    nbytes: int
    privilege: int
    interesting: bool
    giver: NodeId | None
    own: bool
    held: int


class Paper(TypedDict):
    """The kinds of messages."""

    author: str
    destination: str
    age: int
    lifetime: int | None
    pieces: int


@dataclass
class Known:
    """The state of one message in the model."""

    descriptor: Descriptor
    serial: int
    here: bool = False
    finished: bool = False
    given: bool = False
    owners: set[int] = field(default_factory=set)
    """Owners that pin it."""
    own: bool = False
    interesting: bool = False
    privilege: int = 0
    giver: str | None = None
    nbytes: int = 0
    held: set[int] = field(default_factory=set)

    @property
    def pinned(self) -> bool:
        return bool(self.owners)

    @property
    def carried(self) -> bool:
        return not (self.interesting or self.own)

    @property
    def parties(self) -> tuple[tuple[str, object], ...]:
        if self.own:
            return ()
        found: list[tuple[str, object]] = [("author", self.descriptor.author)]
        if self.giver is not None:
            found.append(("giver", self.giver))
        if self.carried and self.descriptor.destination.split("/")[0] in ("queue", "control"):
            found.append(("queues", "all"))
        return tuple(found)

    @property
    def state(self) -> str:
        if not self.here:
            return "done" if self.finished else "declined"
        if len(self.held) == self.descriptor.pieces:
            return "whole"
        return "partial" if self.held else "admitted"

    @property
    def deadline(self) -> float:
        deadline_us = self.descriptor.deadline_us
        return float("inf") if deadline_us is None else deadline_us


class Model:
    def __init__(self, settings: Settings, ranking: Ranking) -> None:
        self.settings = settings
        self.by_interest = ranking is INTEREST_FIRST
        self.bytes_max = settings.cache_bytes_max
        """Bytes that the disk takes."""
        self.known: dict[MessageId, Known] = {}
        self.serial = 0
        self.removed: list[MessageId] = []

    def here(self) -> list[Known]:
        return [known for known in self.known.values() if known.here]

    def remembered(self) -> list[Known]:
        return [known for known in self.known.values() if not known.here]

    def delivered(self) -> list[Known]:
        """Return the messages that must not be forgotten before their deadlines."""
        return [known for known in self.remembered() if known.given and not known.own and known.deadline < NEVER]

    def rank(self, known: Known) -> tuple[int, int, bytes | int]:
        """Return the key by which copies are evicted; equal ones, where ids do not count, by arrival."""
        level = known.interesting << 8 | known.privilege if self.by_interest else known.privilege
        created_us = known.descriptor.created_us
        return level, created_us, known.serial if self.by_interest else known.descriptor.id

    def outranks(self, known: Known, other: Known) -> bool:
        return self.rank(known)[: 2 if self.by_interest else 3] > self.rank(other)[: 2 if self.by_interest else 3]

    def used(self, copies: list[Known]) -> tuple[int, int]:
        return len(copies), sum(known.nbytes for known in copies)

    def fits(self, copies: list[Known], messages: int, nbytes: int) -> bool:
        used = self.used(copies)
        return used[0] + messages <= self.settings.cache_messages_max and used[1] + nbytes <= self.bytes_max

    @property
    def spares_wanted(self) -> bool:
        """True if the disk is short, so that only carried copies give way."""
        return self.by_interest and self.bytes_max < self.settings.cache_bytes_max

    def over(self, copies: list[Known], party: tuple[str, object], messages: int = 0, nbytes: int = 0) -> bool:
        if not self.settings.shares:
            return False
        used = self.used([known for known in copies if party in known.parties])
        messages, nbytes = used[0] + messages, used[1] + nbytes
        limits = self.settings.limits
        part = {"author": limits.share_author, "giver": limits.share_neighbour, "queues": limits.share_queues}[party[0]]
        most = self.settings.cache_messages_max * part, self.settings.cache_bytes_max * part
        return messages > 1 and (messages > most[0] or nbytes > most[1])

    def victims(self, newcomer: Known, messages: int, nbytes: int) -> list[Known] | Reason:
        """Return the copies that are evicted, or the reason why the newcomer may not come in."""
        copies = self.here()
        confined = [party for party in newcomer.parties if self.over(copies, party, messages, nbytes)]
        if len(confined) > 1:  # An author before a giver, and both with the queues.
            confined = [confined[0], *(party for party in confined[1:] if party[0] == "queues")]
        leaving: list[Known] = []
        while not self.fits(copies, messages, nbytes):
            lower = [known for known in copies if not known.pinned and self.outranks(newcomer, known)]
            if self.spares_wanted:
                lower = [known for known in lower if not known.interesting]
            if confined:
                lower = [known for known in lower if confined[-1] in known.parties]
                lowest = min(lower, key=self.rank, default=None)
                lower = [lowest] if lowest is not None and confined[0] in lowest.parties else []
            else:
                over = [known for known in lower if any(self.over(copies, party) for party in known.parties)]
                lower = over or lower
            if not lower:
                return Reason.SHARE if confined and confined[0][0] != "queues" else Reason.NO_ROOM
            victim = min(lower, key=self.rank)
            copies.remove(victim)
            leaving.append(victim)
        return leaving

    def admits(self, length: int, privilege: int, interesting: bool) -> bool:
        if self.fits(self.here(), 1, length):
            return True
        bound = interesting << 8 | privilege if self.by_interest else privilege
        if self.spares_wanted:
            bound = min(bound, 255)
        staying = [known for known in self.here() if known.pinned or self.rank(known)[0] > bound]
        return self.fits(staying, 1, length)

    def limit(self, nbytes: int) -> None:
        before, self.bytes_max = self.bytes_max, min(self.used(self.here())[1] + nbytes, self.settings.cache_bytes_max)
        if self.bytes_max > before:
            self.reconsider()

    def admit(self, newcomer: Known, nbytes: int, held: set[int]) -> Reason | None:
        message = newcomer.descriptor.id
        leaving = self.victims(newcomer, 1, nbytes)
        before = self.known.get(message)
        if isinstance(leaving, Reason):
            if before is None and not newcomer.own:
                self.known[message] = newcomer
                self.forget_excess()
            return leaving
        newcomer.here, newcomer.finished, newcomer.nbytes, newcomer.held = True, newcomer.own, nbytes, held
        self.known[message] = newcomer
        self.evict(leaving)
        return None

    def grow(self, known: Known, piece: int, nbytes: int) -> bool:
        if not known.here:
            return False
        if piece not in known.held:
            leaving = self.victims(known, 0, nbytes)
            if isinstance(leaving, Reason):
                return False
            known.held.add(piece)
            known.nbytes += nbytes
            self.evict(leaving)
        return True

    def evict(self, leaving: list[Known]) -> None:
        for known in leaving:
            self.leave(known)
            self.removed.append(known.descriptor.id)
        if leaving:
            self.forget_excess()

    def leave(self, known: Known) -> None:
        known.here = False
        known.owners.clear()

    def forget_excess(self) -> None:
        excess = len(self.remembered()) - self.settings.limits.seen_max
        ids = {known.descriptor.id for known in self.delivered()}
        others = [known for known in self.remembered() if known.descriptor.id not in ids]
        earliest = sorted(others, key=lambda known: (known.finished, known.deadline, known.serial))
        for known in earliest[: max(0, excess)]:
            del self.known[known.descriptor.id]

    def reconsider(self) -> None:
        messages, nbytes = self.used(self.here())
        settings = self.settings
        if messages < 0.9 * settings.cache_messages_max and nbytes < 0.9 * self.bytes_max:
            for known in self.remembered():
                if not known.finished:
                    del self.known[known.descriptor.id]

    def remove(self, known: Known, reason: Reason, done: bool) -> None:
        was_here = known.here
        finished = known.finished or done or reason is Reason.WITHDRAWN
        self.leave(known)
        del self.known[known.descriptor.id]
        if was_here and reason is not Reason.NO_ROOM:
            self.reconsider()
        if reason is not Reason.EXPIRED:
            known.finished = finished
            self.known[known.descriptor.id] = known
            self.forget_excess()

    def throw_out(self, several: list[Known]) -> None:
        here = [known for known in several if known.here]
        for known in here:
            self.leave(known)
            known.finished = True
        self.reconsider()
        self.forget_excess()
        self.removed += [known.descriptor.id for known in here]

    def expire(self, now: int) -> list[MessageId]:
        ended = sorted(
            (known for known in self.known.values() if known.deadline <= now),
            key=lambda known: (known.deadline, known.serial),
        )
        for known in ended:
            del self.known[known.descriptor.id]
        if ended:
            self.reconsider()
        return [known.descriptor.id for known in ended if known.here]


small = st.integers(min_value=0, max_value=3)
sizes = st.sampled_from([0, 10, 25, 40, 70])
picks = st.integers(min_value=0, max_value=11)
owners = st.sampled_from([DELIVERIES, ORDER, PUBLISHING])
ways = st.fixed_dictionaries(
    {
        "nbytes": sizes,
        "privilege": small,
        "interesting": st.booleans(),
        "giver": st.sampled_from([None, NodeId("g"), NodeId("h"), NodeId("h")]),
        "own": st.sampled_from([False, False, False, False, True]),
        "held": st.sampled_from([0, 0, 1, 2, 7]),
    }
)


papers = st.fixed_dictionaries(
    {
        "author": st.sampled_from("AABC"),
        "destination": st.sampled_from(["news", "queue/n/q", "control/n", "control/all"]),
        "age": st.sampled_from([0, 0, 1, 2]),
        "lifetime": st.sampled_from([None, None, 1, 5, 20, 60]),
        "pieces": st.sampled_from([1, 1, 2, 3]),
    }
)


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        """Number of changes after which heaps are rebuilt."""
        self.now = 0
        self.written: list[Descriptor] = []
        self.shadow = 0
        """Bitset of another part: every slot seen, until its release is reported."""
        self.slots: dict[MessageId, tuple[int, int]] = {}

    @initialize(
        messages_max=st.integers(min_value=2, max_value=8),
        bytes_max=st.sampled_from([60, 200, 400]),
        seen_max=st.sampled_from([1, 3, 1_000, 1_000]),
        shares=st.sampled_from([(0.3, 0.5, 0.4), (0.3, 0.5, 0.4), (1.0, 1.0, 0.3), (1.0, 1.0, 0.3), None]),
        slack=st.sampled_from([0, 64]),
        ranking=st.sampled_from([INTEREST_FIRST, PRIVILEGE_ONLY]),
    )
    def start(
        self,
        messages_max: int,
        bytes_max: int,
        seen_max: int,
        shares: tuple[float, float, float] | None,
        *,
        slack: int,
        ranking: Ranking,
    ) -> None:
        for module in (eviction, memories):
            self.patch.setattr(module, "_STALE_SLACK", slack)
        author, giver, queues = shares or (0.1, 0.1, 0.1)
        limits = Limits(seen_max=seen_max, share_author=author, share_neighbour=giver, share_queues=queues)
        self.settings = Settings.emulated(
            cache_messages_max=messages_max, cache_bytes_max=bytes_max, shares=shares is not None, limits=limits
        )
        self.cache = Cache(self.settings, ranking)
        self.model = Model(self.settings, ranking)

    def teardown(self) -> None:
        self.patch.undo()

    @rule(arrivals=st.lists(st.tuples(papers, ways), min_size=1, max_size=6))
    def meet(self, arrivals: list[tuple[Paper, Way]]) -> None:
        for paper, way in arrivals:
            self.written.append(self.write(paper))
            self.admit(self.written[-1], way)

    def write(self, paper: Paper) -> Descriptor:
        length = paper["pieces"] * PIECE_BYTES
        return Descriptor(
            author=paper["author"],
            incarnation=0,
            sequence=len(self.written),
            created_us=max(0, self.now - paper["age"]),
            deadline_us=None if paper["lifetime"] is None else self.now + paper["lifetime"],
            destination=paper["destination"],
            size=length,
            length=length,
            codec=PayloadCodec.BLANK,
            root=b"",
            fragment_bytes=1_000,
        )

    @precondition(lambda self: self.written)
    @rule(pick=picks, way=ways)
    def meet_again(self, pick: int, way: Way) -> None:
        self.admit(self.written[-1 - pick % len(self.written)], way)

    def admit(self, descriptor: Descriptor, way: Way) -> None:
        way = {**way, "held": way["held"] & ((1 << descriptor.pieces) - 1)}
        before = self.model.known.get(descriptor.id)
        if not descriptor.alive(self.now):
            assert self.cache.admit(descriptor, **way, now=self.now) is Reason.EXPIRED
            return
        if before is not None and (before.here or before.finished):
            with pytest.raises(StateError):
                self.cache.admit(descriptor, **way, now=self.now)
            return
        newcomer = self.tenant(descriptor) if before is None else Known(descriptor, before.serial)
        newcomer.privilege, newcomer.interesting = way["privilege"], way["interesting"]
        newcomer.giver, newcomer.own = way["giver"], way["own"]
        refusal = self.model.admit(newcomer, way["nbytes"], set(bits(way["held"])))
        answer = self.cache.admit(descriptor, **way, now=self.now)
        if refusal is None:
            assert isinstance(answer, Copy)
            assert answer is self.cache.get(descriptor.id)
        else:
            assert answer is refusal
        self.compare_removed()

    def tenant(self, descriptor: Descriptor) -> Known:
        self.model.serial += 1
        return Known(descriptor, self.model.serial)

    def pick(self, pick: int, *states: str) -> tuple[Copy, Known] | None:
        """Return one of the messages known in one of these states."""
        known = [known for known in self.model.known.values() if not states or known.state in states]
        if not known:
            return None
        chosen = known[pick % len(known)]
        copy = self.cache.get(chosen.descriptor.id)
        assert copy is not None
        return copy, chosen

    @rule(pick=picks, piece=small, nbytes=sizes)
    def grow(self, pick: int, piece: int, nbytes: int) -> None:
        if chosen := self.pick(pick, "admitted", "partial", "partial"):
            copy, known = chosen
            piece %= known.descriptor.pieces
            expected = self.model.grow(known, piece, nbytes)
            assert self.cache.grow(copy, piece, nbytes) is expected
            self.compare_removed()

    @rule(pick=picks, piece=small)
    def nothing_grows_that_is_not_here(self, pick: int, piece: int) -> None:
        if chosen := self.pick(pick, "done", "declined"):
            assert not self.cache.grow(chosen[0], piece, 10)

    @rule(
        pick=picks,
        reason=st.sampled_from([Reason.EXPIRED, Reason.PAYLOAD_GONE, Reason.WITHDRAWN]),
        done=st.booleans(),
    )
    def remove(self, pick: int, reason: Reason, done: bool) -> None:
        if chosen := self.pick(pick):
            copy, known = chosen
            self.model.remove(known, reason, done)
            self.cache.remove(copy, reason, done=done)
            assert not copy.here
            assert not copy.whole

    @rule(several=st.lists(picks, max_size=4, unique=True))
    def throw_out(self, several: list[int]) -> None:
        chosen = {id(found[1]): found for pick in several if (found := self.pick(pick)) is not None}
        self.cache.throw_out([copy for copy, _ in chosen.values()], Reason.PURGED)
        self.model.throw_out([known for _, known in chosen.values()])
        removed = self.cache.pop_removed()
        assert all(reason is Reason.PURGED for _, reason in removed)
        assert [copy.id for copy, _ in removed] == self.model.removed
        self.model.removed = []

    @precondition(lambda self: self.written)
    @rule(pick=picks, done=st.booleans())
    def remember(self, pick: int, done: bool) -> None:
        descriptor = self.written[-1 - pick % len(self.written)]
        if not descriptor.alive(self.now):
            return
        known = self.model.known.get(descriptor.id)
        if known is None:
            known = self.model.known[descriptor.id] = self.tenant(descriptor)
            known.finished = done
            self.model.forget_excess()
        known.finished = known.finished or done
        self.cache.remember(descriptor, done=done)

    @rule(pick=picks)
    def mark_done(self, pick: int) -> None:
        if chosen := self.pick(pick):
            self.cache.mark_done((chosen[0],))
            chosen[1].finished = True

    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        if chosen := self.pick(pick, "whole"):
            chosen[0].given = DELIVERED
            self.cache.mark_done((chosen[0],))
            chosen[1].given = chosen[1].finished = True

    @rule(pick=picks, owner=owners)
    def pin(self, pick: int, owner: int) -> None:
        if chosen := self.pick(pick):
            self.cache.pin((chosen[0],), owner)
            chosen[1].owners |= {owner} if chosen[1].here else set()

    @rule(pick=picks, owner=owners)
    def unpin(self, pick: int, owner: int) -> None:
        pinned = [known for known in self.model.known.values() if known.pinned]
        if pinned:
            known = pinned[pick % len(pinned)]
            copy = self.cache.get(known.descriptor.id)
            assert copy is not None
            self.cache.unpin((copy,), owner)
            known.owners.discard(owner)

    @rule(pick=picks, interesting=st.booleans())
    def interest(self, pick: int, interesting: bool) -> None:
        if chosen := self.pick(pick, "admitted", "partial", "whole"):
            self.cache.set_interesting(chosen[0], interesting)
            chosen[1].interesting = interesting

    @rule(length=sizes, privilege=small, interesting=st.booleans())
    def admits(self, length: int, privilege: int, interesting: bool) -> None:
        expected = self.model.admits(length, privilege, interesting)
        assert self.cache.admits(length, privilege, interesting=interesting) is expected

    @rule(nbytes=st.one_of(sizes, st.just(NEVER)))
    def limit(self, nbytes: int) -> None:
        self.model.limit(nbytes)
        self.cache.limit(nbytes)

    @rule(step=st.sampled_from([0, 1, 1, 3, 10]))
    def expire(self, step: int) -> None:
        self.now += step
        assert [copy.id for copy in self.cache.expire(self.now)] == self.model.expire(self.now)

    @rule()
    def take_released(self) -> None:
        self.shadow &= ~self.cache.pop_released()
        assert self.shadow == sum(1 << slot for slot, _ in self.slots.values())

    def compare_removed(self) -> None:
        removed = self.cache.pop_removed()
        assert all(reason is Reason.EVICTED for _, reason in removed)
        assert [copy.id for copy, _ in removed] == self.model.removed
        self.model.removed = []

    @invariant()
    def the_cache_and_the_model_agree(self) -> None:
        cache, known = self.cache, self.model.known
        assert (cache.messages, cache.bytes) == self.model.used(self.model.here())
        assert cache.messages <= self.settings.cache_messages_max
        assert cache.bytes <= self.settings.cache_bytes_max
        delivered, seen_max = len(self.model.delivered()), self.settings.limits.seen_max
        assert len(self.model.remembered()) <= max(delivered, seen_max)
        assert cache.memories.full is (delivered >= seen_max)
        by_slot = {slot: copy for slot, copy in enumerate(cache.copies) if copy is not None}
        assert {copy.id for copy in by_slot.values()} == set(known)
        states = {
            "whole": cache.whole,
            "partial": cache.partial,
            "done": cache.done,
            "declined": cache.declined,
        }
        for state, mask in states.items():
            expected = {message for message in known if known[message].state == state}
            assert {by_slot[slot].id for slot in bits(mask)} == expected, state
        for slot, copy in by_slot.items():
            assert copy.slot == slot
            assert cache.get(copy.id) is copy
            naive = known[copy.id]
            assert (copy.here, copy.whole) == (naive.here, naive.state == "whole")
            assert (copy.here and copy.pins > 0) == naive.pinned
            if copy.here:
                assert (set(bits(copy.held)), copy.held_bytes) == (naive.held, naive.nbytes)
        ends = [naive.deadline for naive in known.values() if naive.descriptor.deadline_us is not None]
        assert cache.deadlines.due_us <= min(ends, default=NEVER)

    @invariant()
    def a_slot_has_one_tenant_until_its_release_is_told(self) -> None:
        tenants = {copy.id: (copy.slot, copy.serial) for copy in self.cache.copies if copy is not None}
        for message, tenancy in tenants.items():
            if self.slots.get(message) != tenancy:
                assert not self.shadow >> tenancy[0] & 1
                self.shadow |= 1 << tenancy[0]
        self.slots = tenants


TestCache = CacheMachine.TestCase
TestCache.settings = hypothesis_settings(stateful_step_count=80)
