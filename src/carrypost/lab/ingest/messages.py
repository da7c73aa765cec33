"""Lists of messages of The ONE (`CreatedMessagesReport`) as scripts: who sends what to whom, and when.

The ONE's reports of messages name hosts with the prefix of their group, as in `c42`, and its reports of connections
number them, as in `42`. So hosts get the names that they have in the file of contacts that belongs to the messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from carrypost.config.rules import nearest
from carrypost.lab import folders
from carrypost.lab.objects import Folder
from carrypost.traces.contact_columns import read_columns
from carrypost.traces.csvfiles import Line, has_content, read_text

FORMAT = "one-messages"
SCRIPT = "messages.csv"
_FIELDS = ("time", "ID", "size", "fromHost", "toHost", "TTL", "isResponse")
_TTL_S = 60


class Script(NamedTuple):
    """A script that was written."""

    path: Folder
    messages: int
    hosts: int


def ingest(path: Path, contacts: Path, out: Folder) -> Script:
    """Write the script of a list of messages into a folder; `contacts`: the file that names the hosts."""
    hosts = read_columns(contacts).contacts.nodes
    rows = list(_rows(path, frozenset(hosts), contacts))
    file = out / SCRIPT
    with folders.staged(file) as partial:
        lines = ["t,node,message,size,lifetime,recipients", *(",".join(row) for row in rows)]
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return Script(file, len(rows), len({name for row in rows for name in (row[1], row[-1])}))


def _rows(path: Path, hosts: Collection[str], contacts: Path) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the script; any bad line is an error."""
    labels: dict[str, int] = {}
    for number, text in enumerate(read_text(path).splitlines(), 1):
        if text.startswith("#") or not has_content(text):
            continue
        line, words = Line(str(path), number), text.split()
        if len(words) not in (len(_FIELDS) - 1, len(_FIELDS)):
            raise line.error(f"expected {' '.join(_FIELDS)}, not {text!r}")
        t, label, size, author, recipient, ttl = words[: len(_FIELDS) - 1]
        if (first := labels.setdefault(label, number)) != number:
            raise line.error(f"message {label!r} is created on line {first} already")
        line.time_us(t, "time")
        if not size.isdecimal():
            raise line.error(f"size must be a whole number of bytes, not {size!r}")
        lifetime_s = line.number_of(ttl, "TTL") * _TTL_S
        if lifetime_s <= 0:
            raise line.error(f"TTL must be a number of minutes above 0, not {ttl!r}")
        names = [_host(each, hosts, line, contacts) for each in (author, recipient)]
        yield t, names[0], label, size, f"{lifetime_s:.12g}", names[1]


def _host(name: str, hosts: Collection[str], line: Line, contacts: Path) -> str:
    """Return the name of a host in the contacts."""
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-")
    found = name if name in hosts else digits
    if found not in hosts:
        raise line.error(f"there is no host {name!r} in {contacts}{nearest(digits or name, hosts)}")
    return found
