"""The circles of a host: charters, epochs, invitations, and what owners and members say to each other.

A circle's owners have its root. They list members in charters, which travel as messages to ``control/CIRCLE`` that all
nodes carry. Of two charters the one of higher rank counts, but whoever any of them removed stays removed: an owner that
misses a removal in the newest charter issues the next. A member sends under the epoch of the newest charter, and opens
messages of every epoch that it has the secret of; secrets are deleted when no living message needs them.

Rows are of kind `sealing`: circles by id, epochs by circle, number and id. Times are this host's own.

`CircleCommands` is for code that uses a host itself; programs use the commands of messaging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from carrypost.application.circle_state import Circle, CircleChanged, CircleRow, CircleView, EpochRow, KeyMissing
from carrypost.application.ledger import Table
from carrypost.errors import IllegalArgumentException, IllegalStateException, InvalidDestinationException
from carrypost.gossip.draft import Draft
from carrypost.gossip.layer import Part, Stored
from carrypost.model import address
from carrypost.model.ids import NodeId, node_bytes, node_of
from carrypost.model.pattern import entry
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.security import circle as values
from carrypost.security import codes, hpke, packets, sealing
from carrypost.security.circle import Code, Epoch, Invitation
from carrypost.security.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.application.deliveries import Deliveries
    from carrypost.application.keyring import Keyring
    from carrypost.gossip.layer import Steps
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.security.sealing import SealingKey


CIRCLES_MAX = 64
"""Number of circles of one node."""
_WEEK_US = 7 * 86_400 * MICROSECONDS
_EPOCH_US = 30 * 86_400 * MICROSECONDS
"""Age at which an owner begins a new epoch, and time for which one is used by nodes that were away."""
DAYS_MAX = 30
"""Days for which an invitation is open, at most."""


Answer = TypeVar("Answer")
OF_CIRCLES = (address.SEALED, f"{address.Kind.CONTROL}/")
"""Prefixes of destinations that may be of a circle."""


class Circles(Part):
    """The circles of one host, and what it has to publish about them."""

    def __init__(self, context: HostContext, deliveries: Deliveries, keyring: Keyring) -> None:
        self._node, self._holdings, self._emit = context.node, context.holdings, context.outputs.emit
        self._deliveries, self._entropy, self._closed = deliveries, keyring.entropy, context.links.closed
        self.keyring = keyring
        self._rows = Table(keyring.ledger, b"C", CircleRow)
        self._epoch_rows = Table(keyring.ledger, b"E", EpochRow)
        self._all: dict[NodeId, Circle] = {}
        self._wants: dict[NodeId, int] = {}
        self._posts: list[Draft] = []

    # --- asking --------------------------------------------------------------------------------------------

    def at(self, destination: str) -> Circle | None:
        """Return the circle of a destination as carriers see it, if that is of a topic or of control messages."""
        return self._all.get(NodeId(destination.split("/", 2)[1])) if destination.startswith(OF_CIRCLES) else None

    def named(self, name: str) -> Circle:
        """Return the circle of this name, or id; raises `InvalidDestinationException`."""
        for each in self._all.values():
            if name in (each.name, each.id):
                return each
        there = ", ".join(sorted(repr(each.name) for each in self._all.values())) or "none"
        raise InvalidDestinationException(
            f"this node is not in a circle {name!r}; its circles: {there}. Join it with the code of an owner: "
            "carrypost circle join CODE"
        )

    def has(self, pattern: str) -> bool:
        """Return True if this node is in the circle of topics that programs asked for."""
        name, _ = address.parted_circle(pattern)
        return any(each.name == "".join(address.levels_of(name)) for each in self._all.values())

    def sealed_draft(self, draft: Draft) -> Draft:
        """Return a draft to a topic of a circle as carriers see it."""
        name, topic = address.parted_circle(draft.destination)
        circle = self.named(name)
        if draft.recipients is not None or draft.sealed is False:
            option = "recipients" if draft.recipients is not None else "sealed=False"
            raise IllegalArgumentException(f"a message to a circle is sealed for all its members: leave {option} out")
        sealed = values.sealed_topic(circle.id, circle.tag_key, topic)
        return msgspec.structs.replace(draft, destination=sealed, topic=topic)

    def sending(self, circle: Circle) -> tuple[int, bytes]:
        """Return number and id of the epoch under which this node sends.

        Raises `IllegalStateException` if it may not, or cannot.
        """
        if circle.removed and node_bytes(self._node) in circle.removed:
            raise IllegalStateException(f"this node was removed from the circle {circle.name!r}")
        epoch = circle.epoch
        if epoch is None:
            raise IllegalStateException(
                f"the secret of the present epoch of the circle {circle.name!r} is not known here yet: wait until an "
                "owner was met, or ask for a new code"
            )
        return epoch

    def pattern(self, pattern: str) -> str:
        """Return the pattern of what carriers see of topics of a circle, from that which programs asked for."""
        name, topic = address.parted_circle(pattern)
        circle = self.named("".join(address.levels_of(name)))
        return address.sealed_pattern(
            circle.id, address.levels_of(topic), lambda each: values.tag(circle.tag_key, each)
        )

    # --- commands ------------------------------------------------------------------------------------------

    def found(self, name: str, now: int) -> NodeId:
        """Found a circle, with this node as its owner; return its id."""
        _check_name(name)
        self._check_room(name)
        seed = self._entropy(hpke.KEY_BYTES)
        root = Identity.from_seed(seed)
        assert isinstance(root.author, bytes)  # It has a key.
        circle = Circle(name, root.author, self._entropy(values.TAG_KEY_BYTES), 1, seed, id=root.node)
        self._enter(circle)
        self._issue(circle, now, {self._node: self.keyring.current(now)}, (), fresh=True)
        return circle.id

    def invite(self, name: str, card: str | None, days: float, now: int, *, fresh: bool) -> str:
        """Return the code of a new invitation; raises `IllegalStateException` unless this node is an owner."""
        circle = self._owned(name)
        if not 0 < days <= DAYS_MAX:
            raise IllegalArgumentException(f"an invitation is open for up to {DAYS_MAX} days, not {days:g}")
        to = None if card is None else codes.read_card(card, self._holdings.date_of(now))
        if to is not None and node_bytes(to.node) in circle.removed:
            raise IllegalArgumentException(f"{to.node} was removed from the circle: it needs a node with a new key")
        private = self._entropy(hpke.KEY_BYTES)
        until_us = self._holdings.date_of(now) + round(days * 86_400 * MICROSECONDS)
        invited = Invitation(hpke.public_of(private), until_us, b"" if to is None else node_bytes(to.node))
        epoch = self._issue(circle, now, self._keys(circle), (*self._invitations(circle, now), invited), fresh=fresh)
        code = Code(circle.root, circle.tag_key, epoch, private, until_us, circle.name)
        return values.code_of(code, to, self._entropy)

    def join(self, text: str, now: int, root: str = "") -> str:
        """Join the circle of a code; return the name that it has here. With its `root`, this node is an owner."""
        code = values.read_code(text, self._node, self.keyring.privates, self._holdings.date_of(now))
        seed = _seed_of(root, code.circle) if root else b""
        known = self._all.get(code.circle)
        if known is None:
            self._check_room("")
            taken = {each.name for each in self._all.values()}
            numbered = (code.name, *(f"{code.name}-{at}" for at in range(2, CIRCLES_MAX + 2)))
            name = next(each for each in numbered if each not in taken)
            known = Circle(name, code.root, code.tag_key, code.epoch.number, id=code.circle)
            self._enter(known)
        known.invitation, known.seed = code.private, seed or known.seed
        self._learn(known, code.epoch, now)
        self._write(known)
        self._post(known, b"", {"joined": True}, sealed=True)
        self._changed(known)
        return known.name

    def remove(self, name: str, node: NodeId, now: int) -> None:
        """Remove a node: it cannot read what is sent from now on, and nothing of it is opened any more."""
        circle = self._owned(name)
        if node == self._node:
            raise IllegalArgumentException("an owner cannot remove itself: leave the circle")
        invited = [node_of(each.node) for each in circle.latest.invitations if each.node]
        known = {*circle.members, *invited}
        if node not in known:
            raise IllegalArgumentException(f"{node} is no member of the circle {circle.name!r}")
        circle.removed = tuple(sorted({*circle.removed, node_bytes(node)}))
        self._renew(circle, now)

    def rotate(self, name: str, now: int) -> None:
        """Begin a new epoch."""
        self._renew(self._owned(name), now)

    def leave(self, name: str) -> None:
        """Leave a circle: its secrets are deleted here."""
        circle = self.named(name)
        for epoch in circle.epochs:
            self._epoch_rows.delete(_epoch_name(circle, *epoch))
        self._rows.delete(node_bytes(circle.id))
        del self._all[circle.id]
        if (wanted := self._wants.pop(circle.id, None)) is not None:
            self._deliveries.unsubscribe((wanted,))
        if self._closed.name in (circle.name, circle.id):
            self._closed.forget()
        self._emit(CircleChanged(circle.name, 0, 0))

    def export(self, name: str) -> str:
        """Return the seed of the root, for a safe: with it another node can be an owner."""
        return self._owned(name).seed.hex()

    def _owned(self, name: str) -> Circle:
        circle = self.named(name)
        if not circle.is_owned:
            raise IllegalStateException(f"this node is no owner of the circle {circle.name!r}: ask one of its owners")
        self.sending(circle)
        return circle

    def _check_room(self, name: str) -> None:
        if not self.keyring.signed:
            raise IllegalStateException('a circle requires security = "signed" on this node')
        if any(each.name == name for each in self._all.values()):
            raise IllegalStateException(f"this node is in a circle {name!r} already: choose another name")
        if len(self._all) >= CIRCLES_MAX:
            raise IllegalStateException(f"a node is in at most {CIRCLES_MAX} circles: leave one first")

    def views(self) -> tuple[CircleView, ...]:
        """Return the circles of this node, for people."""
        return tuple([each.view for each in self._all.values()])

    def conditions(self) -> tuple[tuple[str, int, str], ...]:
        """Return the name of each circle, its number of members, and what is wrong with it in one word."""
        date_us = self._holdings.date_us
        return tuple([(each.name, len(each.members), each.trouble(self._node, date_us)) for each in self._all.values()])

    # --- charters ------------------------------------------------------------------------------------------

    def _renew(self, circle: Circle, now: int) -> None:
        """Begin an epoch, without nodes that were removed, and without invitations for anybody."""
        invitations = [each for each in self._invitations(circle, now) if each.node and each.node not in circle.removed]
        self._issue(circle, now, self._keys(circle), invitations, fresh=True)

    def _keys(self, circle: Circle) -> dict[NodeId, bytes]:
        """Return the members that stay, each with the sealing key that is known of it."""
        found: dict[NodeId, bytes] = {}
        for node in circle.members:
            if node_bytes(node) not in circle.removed:
                known = None if node == self._node else self.keyring.key_for(node)
                found[node] = self.keyring.public if node == self._node else b"" if known is None else known.public
        return found

    def _invitations(self, circle: Circle, now: int) -> tuple[Invitation, ...]:
        date_us = self._holdings.date_of(now)
        return tuple([each for each in circle.latest.invitations if each.until_us > date_us])

    def _issue(
        self, circle: Circle, now: int, keys: dict[NodeId, bytes], invitations: Sequence[Invitation], *, fresh: bool
    ) -> Epoch:
        """Issue the next charter, under a new epoch (`fresh`) or under the present one; return its epoch."""
        before = circle.latest
        if fresh:
            newest = max([before.epoch, *(number for number, _ in circle.epochs)])
            epoch = Epoch(newest + 1, self._entropy(sealing.SECRET_BYTES))
            self._learn(circle, epoch, now)
        else:
            epoch = Epoch(before.epoch, circle.epochs[before.epoch, before.epoch_id].secret)
        if len(keys) > values.MEMBERS_MAX or len(invitations) > values.MEMBERS_MAX:
            raise IllegalStateException(f"a circle has at most {values.MEMBERS_MAX} members, and as many invitations")
        date_us = self._holdings.date_of(now)
        charter = values.charter_of(
            circle.root, epoch, keys, invitations, self._entropy, before=before, date_us=date_us, removed=circle.removed
        )
        circle.signed = values.sign(Identity.from_seed(circle.seed), charter)
        circle.charter = circle.signed.encoded
        circle.published_us = now
        self._write(circle)
        self._post(circle, circle.charter, {})
        self._changed(circle)
        return epoch

    def apply(self, circle: Circle, encoded: bytes, now: int) -> None:
        """Apply a charter that arrived; raises `ForgeryError`."""
        signed = values.read_charter(encoded, circle.id)
        # Also of a charter that does not count: no order of arrival brings a removed node back.
        removed = tuple(sorted({*circle.removed, *signed.charter.removed}))
        news = removed != circle.removed
        circle.removed = removed
        privates = self.keyring.privates
        if circle.invitation:
            privates = privates | {sealing.key_id(hpke.public_of(circle.invitation)): circle.invitation}
        if (epoch := values.epoch_of(signed, privates)) is not None:
            self._learn(circle, epoch, now)
        if circle.signed is None or signed.rank > circle.signed.rank:
            circle.signed, circle.charter, news = signed, signed.encoded, True
        if not news:
            return
        self._write(circle)
        self._changed(circle)
        if circle.epoch is None and node_bytes(self._node) not in removed:
            self._emit(KeyMissing(circle.name))
        assert circle.signed is not None  # It was, or is now.
        missed = {*removed} - {*circle.signed.charter.removed}
        if missed and circle.is_owned and circle.epoch is not None:
            self._renew(circle, now)

    def joined(self, circle: Circle, node: NodeId, key: SealingKey | None, epoch: int, now: int) -> None:
        """List a node that joined under the present epoch, if this node is an owner."""
        present = circle.epoch
        if not circle.is_owned or present is None or epoch != present[0] or node in circle.members:
            return
        if node_bytes(node) in circle.removed or len(circle.members) >= values.MEMBERS_MAX:
            return
        if key is not None:
            self.keyring.learn(node, key, now)
        known = self.keyring.key_for(node)
        keys = self._keys(circle) | {node: b"" if known is None else known.public}
        invitations = [each for each in self._invitations(circle, now) if each.node != node_bytes(node)]
        self._issue(circle, now, keys, invitations, fresh=False)

    def _learn(self, circle: Circle, epoch: Epoch, now: int) -> None:
        key = epoch.number, epoch.id
        if key not in circle.epochs:
            row = circle.epochs[key] = EpochRow(epoch.secret, now)
            self._epoch_rows.put(_epoch_name(circle, *key), row)
            self._close(circle)

    def _close(self, circle: Circle) -> None:
        """Pass on the keys of datagrams, if the circle is that of the closed network."""
        if self._closed.name not in (circle.name, circle.id) or not circle.epochs:
            return
        present = circle.epoch
        newest = sorted(circle.epochs, key=lambda each: (each == present, each), reverse=True)
        keys = [packets.packet_key(circle.epochs[each].secret) for each in newest[: packets.OLDER_MAX + 1]]
        removed = frozenset(map(node_of, circle.removed))
        self._closed.update(circle.id, packets.PacketKeys(keys[0], tuple(keys[1:])), removed, self._holdings.now_us)

    def _changed(self, circle: Circle) -> None:
        charter = circle.latest
        self._emit(CircleChanged(circle.name, charter.number, charter.epoch if charter.number else 0))
        self._close(circle)
        self._look_ahead()

    # --- time ----------------------------------------------------------------------------------------------

    def drafts(self, now: int) -> Sequence[Draft]:
        """Return what has to be published; begin epochs and delete old ones."""
        for circle in self._all.values():
            if circle.is_owned and circle.epoch is not None and node_bytes(self._node) not in circle.removed:
                fresh = circle.epochs[circle.epoch].begun_us + _EPOCH_US <= now
                if fresh or circle.published_us + self._period_us <= now:
                    self._issue(circle, now, self._keys(circle), self._invitations(circle, now), fresh=fresh)
            for each in [each for each, end_us in self._ends(circle).items() if end_us <= now]:
                del circle.epochs[each]
                self._epoch_rows.delete(_epoch_name(circle, *each))
        posts, self._posts = self._posts, []
        self._look_ahead()
        return posts

    @property
    def _period_us(self) -> int:
        return min(_WEEK_US, self.keyring.advertised_us // 2)

    def _ends(self, circle: Circle) -> dict[tuple[int, bytes], int]:
        """Return the epochs before the newest, and the times at which their secrets are to be deleted."""
        newest, used_us = max(circle.epochs, default=None), _EPOCH_US + self.keyring.lifetime_us
        return {each: row.begun_us + used_us for each, row in circle.epochs.items() if each != newest}

    def _post(self, circle: Circle, payload: bytes, attributes: dict[str, bool], *, sealed: bool | None = None) -> None:
        to, lifetime_us = address.control(circle.id), self.keyring.advertised_us
        self._posts.append(Draft(to, payload, attributes, lifetime_us, sealed=sealed, withheld=True))
        self.due_us = 0

    def _look_ahead(self) -> None:
        dues = [0] if self._posts else []
        for circle in self._all.values():
            if circle.is_owned:
                dues.append(circle.published_us + self._period_us)
                if (epoch := circle.epoch) is not None:
                    dues.append(circle.epochs[epoch].begun_us + _EPOCH_US)
            dues += self._ends(circle).values()
        self.due_us = min(dues, default=NEVER)

    # --- the store -----------------------------------------------------------------------------------------

    def read(self, stored: Stored) -> None:
        """Restore all circles after a restart, from the rows of the layer."""
        for name, row in self._rows.read(stored):
            circle = Circle(*msgspec.structs.astuple(row), id=node_of(name))
            if circle.charter:
                circle.signed = values.read_charter(circle.charter, circle.id)
            self._all[circle.id] = circle
        for name, epoch in self._epoch_rows.read(stored):
            if (found := self._all.get(node_of(name[:16]))) is not None:
                found.epochs[int.from_bytes(name[16:20], "big"), name[20:]] = epoch
        for circle in self._all.values():
            self._close(circle)

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - the layer that opens messages has the rows
        """Want charters, once messaging is open."""
        for circle in self._all.values():
            self._want(circle)
        self._look_ahead()

    def _enter(self, circle: Circle) -> None:
        self._all[circle.id] = circle
        self._want(circle)

    def _want(self, circle: Circle) -> None:
        destination = address.exactly(address.control(circle.id))
        self._wants[circle.id] = self._deliveries.want(entry(destination), advertised=False)

    def _write(self, circle: Circle) -> None:
        fields = [getattr(circle, name) for name in CircleRow.__struct_fields__]
        self._rows.put(node_bytes(circle.id), CircleRow(*fields))


def _epoch_name(circle: Circle, number: int, epoch: bytes) -> bytes:
    return node_bytes(circle.id) + number.to_bytes(4, "big") + epoch


def _seed_of(root: str, circle: NodeId) -> bytes:
    """Return the seed of a root, as `Circles.export` wrote it."""
    try:
        seed = bytes.fromhex(root)
    except ValueError:
        seed = b""
    if len(seed) != hpke.KEY_BYTES or Identity.from_seed(seed).node != circle:
        raise IllegalArgumentException("this is not the root of the circle: use what `carrypost circle export` printed")
    return seed


def _check_name(name: str) -> None:
    if not name or len(name.encode()) > values.NAME_MAX or "/" in name or "." in name:
        raise IllegalArgumentException(
            f"the name of a circle has 1 to {values.NAME_MAX} letters, without dots and slashes, not {name!r}"
        )
    address.check_name(name, "circle")


class CircleCommands:
    """Commands about circles for code that uses a host itself: `host.circles`. Each is a step."""

    def __init__(self, circles: Circles, steps: Steps) -> None:
        self._circles, self._steps = circles, steps
        self.export, self.views = circles.export, circles.views
        """Functions that return the root of a circle, by its name, and the circles of this node."""

    def _step(self, now: int, command: Callable[[], Answer]) -> Answer:
        with self._steps.step(now):
            return command()

    def found(self, name: str, now: int) -> NodeId:
        """Found a circle; return its id."""
        return self._step(now, lambda: self._circles.found(name, now))

    def invite(
        self, circle: str, now: int, *, to: str | None = None, days: float = DAYS_MAX, fresh: bool = False
    ) -> str:
        """Return the code of an invitation; `to`: the card of the one node that it is for."""
        return self._step(now, lambda: self._circles.invite(circle, to, days, now, fresh=fresh))

    def join(self, code: str, now: int, *, root: str = "") -> str:
        """Join the circle of a code, with its root as an owner; return its name here."""
        return self._step(now, lambda: self._circles.join(code, now, root))

    def remove(self, circle: str, node: NodeId, now: int) -> None:
        """Remove a node from a circle."""
        self._step(now, lambda: self._circles.remove(circle, node, now))

    def rotate(self, circle: str, now: int) -> None:
        """Begin a new epoch of a circle."""
        self._step(now, lambda: self._circles.rotate(circle, now))

    def leave(self, circle: str, now: int) -> None:
        """Leave a circle."""
        self._step(now, lambda: self._circles.leave(circle))

    def members(self, circle: str) -> tuple[NodeId, ...]:
        """Return the listed members of a circle."""
        return self._circles.named(circle).members

    def card(self, now: int) -> str:
        """Return the card of this node."""
        return self._step(now, lambda: self._circles.keyring.card(now))

    def add_card(self, card: str, now: int) -> NodeId:
        """Learn the sealing key of another node from its card; return the node."""
        return self._step(now, lambda: self._circles.keyring.add_card(card, now))
