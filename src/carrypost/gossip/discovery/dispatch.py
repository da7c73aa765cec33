"""Frames that came over a link, each to the part that it is for.

Announcements are taken from anybody. Everything else is taken from neighbours only, but for a few kinds by which one
becomes a neighbour; small messages of one datagram are taken together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import RemoteError
from carrypost.gossip.discovery.neighbour import LINKED
from carrypost.gossip.transfers.accounts import PARCEL, Accounts, price
from carrypost.gossip.wire import frames as fr
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.gossip.discovery.neighbour import Neighbour
    from carrypost.gossip.discovery.neighbours import Neighbours
    from carrypost.gossip.layer import Layers
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link

_INTRODUCTIONS = (fr.Profile, fr.ProfileRequest)
"""Kinds that are sent to whoever is heard; all others, but announcements, only where a contact has begun."""
_BEFORE_LINKED = (*_INTRODUCTIONS, fr.Request)
"""Kinds that are taken from who does not list this host (yet); a request that names it is as good as a list."""


class Dispatch:
    """Hands out the frames of one host."""

    def __init__(self, ground: Ground, neighbours: Neighbours, strategy: Strategy, layers: Layers) -> None:
        self._outputs, self._prefix = ground.outputs, ground.prefix
        self._waste_max = ground.limits.link_waste_per_s
        self._neighbours = neighbours
        self._strategy = strategy
        self.accounts = Accounts(ground.limits)
        self._of_neighbours: dict[type, Callable[..., None]] = {
            fr.Profile: neighbours.take_profile,
            fr.ProfileRequest: neighbours.answer_profile,
            fr.Request: self._request,
        }
        self._of_contacts, self._of_links = strategy.handlers, strategy.transfers.handlers
        self._of_layers = layers.handlers
        """Looked at for every frame that none of these takes: a layer may join a host that runs."""

    def close(self) -> None:
        """The host is done with it."""
        self._of_neighbours.clear()

    def take(self, neighbour: Neighbour | None, frames: Sequence[fr.Frame], peer: str, now: int) -> bool:
        """Take the frames one by one, and small messages together. False: they said nothing new."""
        new = False
        cost, waste_max = 0, self._waste_max
        parcels: list[fr.OpenParcel] = []
        for number, frame in enumerate(frames, 1):
            # By `type`: to ask whether a Struct is an instance of its class takes five times as long.
            if type(frame) is fr.OpenParcel and neighbour is not None and neighbour.state is LINKED:
                parcels.append(frame)
                continue
            cost += price(frame)
            if type(frame) is fr.Announce:
                new = self._neighbours.announced(frame, peer, now) or new
                neighbour = self._neighbours.get(peer)
            elif neighbour is None or (neighbour.state is not LINKED and not _listens_to(neighbour.link, frame)):
                # What a stranger says changes nothing, so it must not cost a round over all neighbours.
                known = neighbour is not None and neighbour.link.node
                self._outputs.refuse("not-linked" if known else "unannounced", peer)
            else:
                new = True
                self._take(neighbour, frame, now)
                # Five hundred frames, each dearer than its price, would keep this host busy while all others wait.
                if cost - neighbour.link.budgets.tally > waste_max:
                    self._outputs.refuse("muted", peer, count=len(frames) - number)
                    break
        if parcels and neighbour is not None:
            cost += PARCEL * len(parcels)
            if neighbour.state is LINKED:
                self._strategy.transfers.take_parcels(neighbour.link, parcels, now)
                new = True
            else:  # An announcement among the frames ended the contact: nobody would send acknowledgements.
                self._outputs.refuse("not-linked", peer, count=len(parcels))
        common = 0
        if neighbour is not None:
            worth, common = neighbour.link.budgets.take_tally()
            cost -= worth
        self.accounts.charge(peer, cost, now, common=common)
        return new

    def _take(self, neighbour: Neighbour, frame: fr.Frame, now: int) -> None:
        kind = type(frame)
        try:
            if (decide := self._of_contacts.get(kind)) is not None:
                decide(neighbour.contact, frame, now)
            elif (meet := self._of_neighbours.get(kind)) is not None:
                meet(neighbour, frame, now)
            elif (move := self._of_links.get(kind) or self._of_layers.get(kind)) is not None:
                move(neighbour.link, frame, now)
            else:  # Of a layer that this host has not, or not now.
                self._outputs.refuse("kind", neighbour.link.peer)
                return
            if neighbour.begun_us == NEVER and kind not in _INTRODUCTIONS:
                neighbour.begun(now)
        except RemoteError as error:
            self._outputs.refuse(error.reason, neighbour.link.peer)

    def _request(self, neighbour: Neighbour, frame: fr.Request, now: int) -> None:
        if frame.to != self._prefix:
            self._outputs.refuse("not-for-me", neighbour.link.peer)
            return
        contact = self._neighbours.named(neighbour, now)
        if contact is not None:
            self._strategy.take_request(contact, frame, now)


def _listens_to(link: Link, frame: fr.Frame) -> bool:
    """Whether a frame is taken from who does not list this host (yet)."""
    return bool(link.node) and type(frame) in _BEFORE_LINKED
