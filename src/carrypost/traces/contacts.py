"""Contacts and presences: the times at which two nodes hear each other, and at which a node is there at all.

Both are half open: at its end a contact is over, at its leave a node is gone. A contact is of an unordered pair, kept
with the lower name first; contacts of one pair never overlap. Two that touch are two contacts: the link went down and
up at that instant. Times are whole microseconds of the run.

Read from CSV (``a,b,start,end``, perhaps ``heard``, and ``node,join,leave``, in seconds) or from The ONE's connection
files (``t CONN a b up``, ``t CONN a b down``; events about messages are passed over), which are also written, so that
others can check us. As in The ONE, the ``up`` of a connected pair and the ``down`` of an unconnected one are ignored;
they are counted. Whatever is wrong is a `LocalError` that names the file and the line.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from carrypost.errors import LocalError
from carrypost.traces.csvfiles import CONTACT_COLUMNS, HEARD, Line, brief, has_content, read_text, rows

FOREVER_US = 2**53
"""End of a contact whose end is missing in a connection file."""
CONN_WORDS = (5, 6)
"""Numbers of words in a line; the sixth is the name of an interface, of which there is one here."""
_ONE_HOST = re.compile(r"[^0-9\s]*([0-9]{1,9})")
_ONE_NAMED = re.compile(r"# host ([0-9]+) is (\S.*)")
ONE_OTHERS = frozenset({"C", "S", "DE", "DR", "A", "R"})
"""Events of The ONE that are about messages, not about contacts."""
Found = tuple[Line, str, str, int, int, str] | None
"""A contact as a file has it: where, two nodes, start and end in microseconds, the one that is heard if only one is.

None: an event that is ignored."""
_Span = tuple[int, int, Line, str]
"""Start and end in microseconds, where a file has them, and the node that is heard if only one is."""


class Contact(NamedTuple):
    """Two nodes are in range of each other in [start, end); a < b, start < end."""

    a: str
    b: str
    start_us: int
    end_us: int
    heard: str = ""
    """The only one of the two that is heard; empty: both are."""


class Meetings(NamedTuple):
    """The contacts of a file, and what else is known of it."""

    contacts: list[Contact]
    """Sorted by start, a, b."""
    nodes: list[str]
    """All nodes in the file, also those with contacts that last no time."""
    ignored_events: int = 0
    """Events of a log that bring up a connected pair, or down an unconnected one."""


class Presence(NamedTuple):
    """A node is there in [join, leave); None: to the end of the run."""

    node: str
    join_us: int
    leave_us: int | None

    def includes(self, t_us: int) -> bool:
        """Return True if the node is there at this time."""
        return self.join_us <= t_us and (self.leave_us is None or t_us < self.leave_us)


class DrawnContacts(NamedTuple):
    """Contacts that a model drew, and what else it knows."""

    contacts: list[Contact]
    """Sorted by start, a, b."""
    presences: list[Presence]
    active: list[Presence]
    """The times at which people use their devices, in which the workload `random` publishes."""


def read_contacts(path: str | Path) -> list[Contact]:
    """Return the contacts of a file, CSV or The ONE's, sorted by start, a, b."""
    return read_meetings(path).contacts


def read_meetings(path: str | Path, nodes: Collection[str] | None = None, *, overlaps: bool = False) -> Meetings:
    """Return the contacts and nodes of a file.

    With `nodes`, a contact of any other node is an error. With `overlaps`, contacts of a pair that overlap are joined,
    and in a log of events a contact lasts until there is a ``down`` for each ``up``.
    """
    if Path(path).is_dir() or Path(path).suffix == ".parquet":
        from carrypost.traces.contact_tables import rows_of  # noqa: PLC0415 - needs pyarrow, as texts do not

        return _checked(rows_of(Path(path)), nodes, overlaps=overlaps)
    return parse_meetings(read_text(path), str(path), nodes, overlaps=overlaps)


def parse_meetings(text: str, name: str, nodes: Collection[str] | None = None, *, overlaps: bool = False) -> Meetings:
    """Return contacts and nodes as `read_meetings` does, from a text; `name` is its name in errors."""
    rows = _parse_one(text, name, overlaps=overlaps) if _is_one(text) else _parse_csv(text, name)
    return _checked(rows, nodes, overlaps=overlaps)


def _checked(rows: Iterable[Found], nodes: Collection[str] | None, *, overlaps: bool) -> Meetings:
    known = None if nodes is None else frozenset(nodes)
    names: set[str] = set()
    found: dict[tuple[str, str], list[_Span]] = {}
    ignored = 0
    for row in rows:
        if row is None:
            ignored += 1
            continue
        line, a, b, start_us, end_us, heard = row
        pair = _pair(line, a, b, known)
        if heard and heard not in pair:
            raise line.error(f"{HEARD} must be {a!r} or {b!r}, the end that is heard, or empty for both, not {heard!r}")
        names.update(line.node(node) for node in pair if node not in names)
        if end_us < start_us:
            raise line.error(f"the contact ends at {brief(end_us)} s, before it starts at {brief(start_us)} s")
        if end_us > start_us:
            found.setdefault(pair, []).append((start_us, end_us, line, heard))
    return Meetings(_without_overlaps(found, overlaps=overlaps), sorted(names), ignored)


def _overlap(spans: list[_Span]) -> tuple[_Span, _Span] | None:
    """Sort spans by time; the first two that overlap, that of the later line first."""
    spans.sort(key=lambda span: span[:2])
    for one, two in itertools.pairwise(spans):
        if two[0] < one[1]:
            return (two, one) if two[2].number > one[2].number else (one, two)
    return None


def _joined(spans: list[_Span]) -> list[_Span]:
    """Return spans without overlaps of those that work in the same directions; those that only touch stay apart."""
    joined: list[_Span] = []
    for start_us, end_us, line, heard in sorted(spans, key=lambda span: span[:2]):
        if joined and start_us < joined[-1][1] and heard == joined[-1][3]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_us), joined[-1][2], heard)
        else:
            joined.append((start_us, end_us, line, heard))
    return joined


def _without_overlaps(found: dict[tuple[str, str], list[_Span]], *, overlaps: bool) -> list[Contact]:
    contacts: list[Contact] = []
    for (a, b), spans in found.items():
        intervals = _joined(spans) if overlaps else spans
        if (both := _overlap(intervals)) is not None:
            later, (start_us, end_us, earlier, heard) = both
            times = f"[{brief(start_us)}, {brief(end_us)}) s of line {earlier.number}"
            message = f"this contact of {a} and {b} overlaps {times}; contacts of one pair must not overlap"
            join = "to join them: overlaps = true in [contacts]"
            raise later[2].error(f"{message}; {join if later[3] == heard else f'they differ in {HEARD}'}")
        contacts.extend(Contact(a, b, start_us, end_us, heard) for start_us, end_us, _, heard in intervals)
    return sorted(contacts, key=_by_start)


def read_presences(path: str | Path) -> list[Presence]:
    """Return the presences of a CSV file ``node,join,leave``, sorted by node and join; no leave: to the end."""
    return parse_presences(read_text(path), str(path))


def parse_presences(text: str, name: str) -> list[Presence]:
    """Return the presences of a text; `name` is what errors call it."""
    found: dict[str, list[_Span]] = {}
    for row in rows(text, name, ("node", "join"), ("leave",)):
        node, join_us = row.line.node(row.text("node")), row.time_us("join")
        leave_us = row.time_us("leave") if "leave" in row else FOREVER_US
        if leave_us <= join_us:
            raise row.line.error(
                f"{node} leaves at {brief(leave_us)} s, which is not after it joins at {brief(join_us)} s"
            )
        found.setdefault(node, []).append((join_us, leave_us, row.line, ""))
    if not found:
        raise LocalError(f"{name}, line 1: there are no nodes below the header")
    for node, spans in found.items():
        if (both := _overlap(spans)) is not None:
            raise both[0][2].error(f"{node} is present already, by line {both[1][2].number}")
    return [
        Presence(node, join_us, None if leave_us == FOREVER_US else leave_us)
        for node, spans in sorted(found.items())
        for join_us, leave_us, *_ in spans
    ]


def write_one(contacts: Iterable[Contact]) -> Iterator[str]:
    """Yield the lines of The ONE's connection file, in order of time; at one instant links go down before any come up.

    Contacts that work one way are left out: The ONE has none, and nothing passes over them. It identifies hosts by
    number. If the numbers at the end of the names do not distinguish the nodes, they are
    numbered from 0 in order of their names, and comments at the top list the names.
    """
    contacts = [each for each in contacts if not each.heard]
    names = sorted({node for contact in contacts for node in (contact.a, contact.b)})
    hosts = {name: name for name in names}
    if not _told_apart(names):
        hosts = {name: str(number) for number, name in enumerate(names)}
        yield from (f"# host {number} is {name}" for name, number in hosts.items())
    events: list[tuple[int, int, str, str]] = []
    for contact in contacts:
        events.append((contact.start_us, 1, contact.a, contact.b))
        if contact.end_us < FOREVER_US:
            events.append((contact.end_us, 0, contact.a, contact.b))
    for t_us, up, a, b in sorted(events):
        yield f"{brief(t_us)} CONN {hosts[a]} {hosts[b]} {'up' if up else 'down'}"


def _told_apart(names: Iterable[str]) -> bool:
    """Return True if The ONE understands these names: each ends in its only number, and no two in the same one."""
    numbers: set[int] = set()
    for name in names:
        found = _ONE_HOST.fullmatch(name)
        if found is None or int(found[1]) in numbers:
            return False
        numbers.add(int(found[1]))
    return True


def clipped(contacts: Iterable[Contact], presences: Iterable[Presence] | None, end_us: int) -> list[Contact]:
    """Return the parts of contacts while both nodes are there, within [0, end); sorted by start, a, b.

    One during which a node was away, if only for an instant, is two. Without presences (None) all nodes are there
    throughout; with them, a node without any is never there.
    """
    stays: dict[str, list[tuple[int, int]]] | None = None
    if presences is not None:
        stays = {}
        for node, join_us, leave_us in sorted(presences, key=lambda presence: presence[:2]):
            stays.setdefault(node, []).append((join_us, end_us if leave_us is None else min(leave_us, end_us)))
    found: list[Contact] = []
    for a, b, start_us, until_us, heard in contacts:
        left = [(max(start_us, 0), min(until_us, end_us))]
        if stays is not None:
            left = _common(_common(left, stays.get(a, ())), stays.get(b, ()))
        found.extend(Contact(a, b, start, end, heard) for start, end in left if start < end)
    return sorted(found, key=_by_start)


def _common(some: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(max(start, since), min(end, until)) for start, end in some for since, until in others]


def _by_start(contact: Contact) -> tuple[int, str, str]:
    return contact.start_us, contact.a, contact.b


def _pair(line: Line, a: str, b: str, known: frozenset[str] | None) -> tuple[str, str]:
    if a == b:
        raise line.error(f"{a} is in contact with itself")
    for node in (a, b):
        if known is not None and node not in known:
            raise line.error(f"there is no node {node} in the list of nodes")
    return (a, b) if a < b else (b, a)


# -------------------------------------------------------------------------------------------------- formats
def _parse_csv(text: str, name: str) -> Iterator[Found]:
    for row in rows(text, name, CONTACT_COLUMNS, (HEARD,), others=False):
        heard = row.text(HEARD) if HEARD in row else ""
        yield row.line, row.text("a"), row.text("b"), row.time_us("start"), row.time_us("end"), heard


def _is_one(text: str) -> bool:
    """Return True if the first line that says something is an event of The ONE."""
    words = next((line.split() for line in text.splitlines() if has_content(line)), [])
    return len(words) > 1 and (words[1] == "CONN" or words[1] in ONE_OTHERS)


def _events_of_one(text: str, name: str) -> Iterator[tuple[Line, int, tuple[str, str], bool]]:
    """Yield where, when and of which pair a link comes up, or goes down."""
    hosts = {named[1]: named[2] for each in text.splitlines() if (named := _ONE_NAMED.fullmatch(each))}
    now_us = 0
    for number, content in enumerate(text.splitlines(), 1):
        if not has_content(content):
            continue
        line, words = Line(name, number), content.split()
        if len(words) > 1 and words[1] in ONE_OTHERS:
            continue
        if len(words) not in CONN_WORDS or words[1] != "CONN" or words[4].lower() not in {"up", "down"}:
            raise line.error(f"must read TIME CONN NODE NODE up|down, not {content.strip()!r}")
        t_us = line.time_us(words[0], "the time")
        if t_us < now_us:
            raise line.error(f"time goes back, from {brief(now_us)} s to {brief(t_us)} s")
        now_us = t_us
        pair = _pair(line, hosts.get(words[2], words[2]), hosts.get(words[3], words[3]), None)
        yield line, t_us, pair, words[4].lower() == "up"


def _parse_one(text: str, name: str, *, overlaps: bool) -> Iterator[Found]:
    since: dict[tuple[str, str], tuple[Line, int]] = {}
    ups: Counter[tuple[str, str]] = Counter()
    for line, t_us, pair, up in _events_of_one(text, name):
        if up == bool(ups[pair]) and not (up and overlaps):
            yield None
            continue
        ups[pair] += 1 if up else -1
        if up:
            since.setdefault(pair, (line, t_us))
        elif not ups[pair]:
            first, start_us = since.pop(pair)
            yield first, *pair, start_us, t_us, ""
    for pair, (first, start_us) in since.items():
        yield first, *pair, start_us, FOREVER_US, ""
