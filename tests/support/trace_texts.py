"""Results of the rules of trace formats for a text."""

from __future__ import annotations

from collections.abc import Collection

from carrypost.traces.contacts import Contact, parse_meetings
from carrypost.traces.formats import FORMATS, Options, read_whole
from carrypost.traces.formats.lines import cut
from carrypost.traces.formats.rules import Parsed


def parse_contacts(text: str, name: str, nodes: Collection[str] | None = None) -> list[Contact]:
    return parse_meetings(text, name, nodes)[0]


def parsed(name: str, text: str | bytes, **options: object) -> Parsed:
    data = text.encode() if isinstance(text, str) else text
    rule = FORMATS[name].begin(data, "trace", Options(**options))  # type: ignore[arg-type]
    return rule.parse(cut(data), 0)


def assembled(name: str, text: str, **options: object) -> list[tuple[object, ...]]:
    """Rows of what comes of a text, times in seconds."""
    asked = Options(**options)  # type: ignore[arg-type]
    _, table = read_whole(FORMATS[name], text, "trace", asked)
    rows = table.to_pylist()
    return [tuple(value / 1e6 if key.endswith("_us") else value for key, value in row.items()) for row in rows]


def whys(name: str, text: str | bytes, **options: object) -> list[tuple[int, str]]:
    return [(bad.at, bad.why) for bad in parsed(name, text, **options).bad]
