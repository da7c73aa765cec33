"""The exchange of tables of encounters with neighbours (`gossip.strategy.prophet`): sending, reading, and names.

A table has 2 bytes for each node, and 8 more with its name. Hosts mostly know the same nodes, so it is first sent
without names, beside their hash. A neighbour that knows other nodes asks for the names by a list of the leading bits of
those that it knows; the answer says which of these are meant, and has only the other names in full. If what follows
does not have the hash, because two names begin alike, both send their tables with all names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import DecodeError
from carrypost.gossip.slots import Members, mask_of
from carrypost.gossip.strategy.encounter_table import hash_of
from carrypost.gossip.wire.cloud_frames import cut
from carrypost.gossip.wire.frames import Encounters, Names, NamesRequest
from carrypost.gossip.wire.routing_frames import (
    ENTRY_BYTES,
    KEY_BYTES,
    LISTED_MAX,
    LOW_BITS,
    listing_bytes,
    packed_entries,
    packed_hashes,
    packed_levels,
    unpacked_hashes,
    unpacked_levels,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.strategy.encounter_table import EncounterTable
    from carrypost.gossip.strategy.heard_table import HeardTable
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link


class TableExchange:
    """Sends the table of one host, and reads those of its neighbours."""

    def __init__(self, context: HostContext, table: EncounterTable) -> None:
        self._table, self._entries_max = table, context.limits.encounters_max

    def send(self, link: Link, heard: HeardTable, now: int) -> None:
        """Send the table without names, if it fits into one frame so."""
        heard.sent_us = now
        levels = packed_levels(self._table.levels(now))
        if len(levels) <= link.body_bytes_max:
            heard.named, heard.keys = False, self._table.keys()
            link.send([Encounters(0, 1, levels, self._table.names())])
        else:
            self._send_named(link, heard, now)

    def _send_named(self, link: Link, heard: HeardTable, now: int) -> None:
        heard.named = True
        entries, most = self._table.entries(now), link.body_bytes_max // ENTRY_BYTES
        parts = [entries[at : at + most] for at in range(0, len(entries), most)] or [[]]
        link.send([Encounters(part, len(parts), packed_entries(each)) for part, each in enumerate(parts)])

    def read(self, link: Link, heard: HeardTable, frame: Encounters, now: int) -> dict[bytes, int] | None:
        """Return the neighbour's table if it is complete; raises `RemoteError` if the parts make none."""
        link.work.did(len(frame.entries) // ENTRY_BYTES)
        if not frame.names:
            found = heard.add(frame, self._entries_max)
            # A neighbour that sends all names could not read the own table, either.
            if not heard.named:
                self._send_named(link, heard, now)
            return found
        if frame.names == self._table.names():
            return _named(self._table.keys(), frame)
        if heard.unread is None or now - heard.asked_us > link.outbox.recovery.answer_us(0):
            heard.unread, heard.asked_us = frame, now
            self._ask(link, heard, frame, now)
        return None

    def _ask(self, link: Link, heard: HeardTable, frame: Encounters, now: int) -> None:
        """Ask for the names of a table."""
        keys = self._table.keys()
        if len(keys) <= LISTED_MAX and listing_bytes(len(keys)) <= link.body_bytes_max:
            link.send((NamesRequest(frame.names, len(keys), packed_hashes(_leading(keys, len(keys)))),))
        elif not heard.named:
            self._send_named(link, heard, now)

    def answer(self, link: Link, heard: HeardTable, frame: NamesRequest, now: int) -> None:
        """Send the names of the own table; raises `RemoteError` for an impossible request."""
        asked = unpacked_hashes(frame.hashes, frame.count)
        if asked is None:
            raise DecodeError("names-request")
        link.work.did(frame.count)
        if heard.named or not heard.keys or frame.names != hash_of(heard.keys):
            return
        place = {each: number for number, each in enumerate(asked)}
        leading = dict(zip(heard.keys, _leading(heard.keys, frame.count), strict=True))
        held = mask_of([place[each] for each in leading.values() if each in place])
        others = b"".join([key for key, each in leading.items() if each not in place])
        if len(others) > link.body_bytes_max:
            self._send_named(link, heard, now)
        else:
            link.send((Names(frame.names, held.to_bytes((frame.count + 7) // 8, "little"), others),))

    def add_names(self, link: Link, heard: HeardTable, frame: Names, now: int) -> dict[bytes, int] | None:
        """Return the table whose names these are, if it waits for them and they are right."""
        table, heard.unread = heard.unread, None
        if table is None or table.names != frame.names:
            return None
        link.work.did(len(frame.others) // KEY_BYTES)
        held = Members(int.from_bytes(frame.held, "little"))
        keys = [key for number, key in enumerate(self._table.keys()) if number in held]
        keys = sorted([*keys, *cut(frame.others, KEY_BYTES)])
        if hash_of(keys) == frame.names:
            return _named(keys, table)
        if not heard.named:  # The own table has changed meanwhile, or two names begin alike.
            self._send_named(link, heard, now)
        return None


def _leading(keys: Sequence[bytes], count: int) -> list[int]:
    """Return the leading bits of names, as a list of `count` names has them."""
    shift = 8 * KEY_BYTES - LOW_BITS - count.bit_length()
    return [int.from_bytes(key, "big") >> shift for key in keys]


def _named(keys: Sequence[bytes], frame: Encounters) -> dict[bytes, int]:
    """Return the entries of a table without names; raises `DecodeError` if these are not its names."""
    levels = unpacked_levels(frame.entries)
    if len(levels) != len(keys):
        raise DecodeError("encounters")
    return {key: units for key, units in zip(keys, levels, strict=True) if units}
