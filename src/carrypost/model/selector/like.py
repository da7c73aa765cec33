r"""Patterns of LIKE: ``_`` matches any one character, ``%`` any sequence, including line breaks and the empty one.

A pattern is cut at each ``%`` into segments of fixed length. The first is compared with the beginning of a value and
the last with its end; those in between are searched one after the other, each behind the one before: the leftmost place
is always as good as any later one, so nothing is tried twice. A segment without ``_`` is found by `str.find`. One with
``_`` is found by the shift-and method: the places at which it may have begun are the bits of an integer, which is
shifted by one for every character. Either way the time is linear in the length of the value, whatever the pattern,
which a stranger may have written; backtracking, as in `re`, would be exponential in the number of ``%``.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

VALUE_STEPS = 1_024
"""Length of the longest value that `Limits.attribute_bytes_max` allows by default: one step per character."""
_FIND_STEPS = 5
"""Steps per character of a segment that `str.find` searches in such a value, measured with the worst values. It is
linear only in longer ones: in short ones trying every place is faster."""
_SHIFTED = 256
"""Length of a segment up to which the integers of the shift-and method are small enough to cost one step."""
_ONE = "_"
_MANY = "%"


class Segment(msgspec.Struct, frozen=True):
    """The part of a pattern between two ``%``."""

    runs: tuple[tuple[int, str], ...]
    """Literal characters by their places; between them any character matches."""
    length: int

    @property
    def plain(self) -> bool:
        """True if it has no ``_``."""
        return not self.length or (len(self.runs) == 1 and len(self.runs[0][1]) == self.length)

    @property
    def text(self) -> str:
        """The characters of a plain segment."""
        return self.runs[0][1] if self.runs else ""


class LikePattern(msgspec.Struct, frozen=True):
    """A pattern, parsed."""

    text: str
    escape: str | None
    """Character that makes ``_`` and ``%`` literal, if there is one."""
    segments: tuple[Segment, ...]

    @property
    def weight(self) -> int:
        """Largest number of steps for a value. Each of its characters is examined for one segment at most."""
        sought = self.segments[1:-1]
        found = max((segment.length for segment in sought if segment.plain), default=0)
        shifted = max((segment.length for segment in sought if not segment.plain), default=0)
        return len(self.text) + _FIND_STEPS * found + VALUE_STEPS * -(-shifted // _SHIFTED)


def read(text: str, escape: str | None) -> LikePattern:
    """Parse a pattern; raises `ValueError` if the escape character escapes nothing."""
    if escape is None or escape not in text:
        escape = None
        if _ONE not in text:
            return LikePattern(text, None, _trimmed([_plain(part) for part in text.split(_MANY)]))
    segments: list[Segment] = []
    characters: list[str | None] = []
    rest = iter(text)
    for character in rest:
        if character == escape:
            escaped = next(rest, None)
            if escaped not in (_ONE, _MANY, escape):
                raise ValueError(f"the pattern has {escape + (escaped or '')!r}{'' if escaped else ' at its end'}")
            characters.append(escaped)
        elif character == _MANY:
            segments.append(_segment(characters))
            characters.clear()
        else:
            characters.append(None if character == _ONE else character)
    segments.append(_segment(characters))
    return LikePattern(text, escape, _trimmed(segments))


def _plain(text: str) -> Segment:
    return Segment(((0, text),) if text else (), len(text))


def _segment(characters: list[str | None]) -> Segment:
    """Return a segment of these characters; None matches any."""
    runs: list[tuple[int, str]] = []
    start = 0
    for place, character in enumerate([*characters, None]):
        if character is None:
            if place > start:
                runs.append((start, "".join(filter(None, characters[start:place]))))
            start = place + 1
    return Segment(tuple(runs), len(characters))


def _trimmed(segments: list[Segment]) -> tuple[Segment, ...]:
    """Return the segments without empty ones in between: ``%%`` is the same as ``%``."""
    if len(segments) < 3:  # noqa: PLR2004 - first and last
        return tuple(segments)
    return segments[0], *(segment for segment in segments[1:-1] if segment.length), segments[-1]


# ------------------------------------------------------------------------------------------------- matching


def matcher(pattern: LikePattern) -> Callable[[str], bool]:
    """Return a function that matches a value; the common forms need one call of `str`."""
    first, last = pattern.segments[0], pattern.segments[-1]
    if len(pattern.segments) == 1:
        return first.text.__eq__ if first.plain else _fixed(first)
    if all(segment.plain for segment in pattern.segments):
        beginning, end = first.text, last.text
        if len(pattern.segments) == 2:  # noqa: PLR2004 - one %
            if not end:
                return lambda value: value.startswith(beginning)
            if not beginning:
                return lambda value: value.endswith(end)
        elif len(pattern.segments) == 3 and not beginning and not end:  # noqa: PLR2004 - %...%
            middle = pattern.segments[1].text
            return lambda value: middle in value
    return _between(first, [(_search(segment), segment.length) for segment in pattern.segments[1:-1]], last)


def _fixed(only: Segment) -> Callable[[str], bool]:
    length = only.length
    return lambda value: len(value) == length and _is_at(value, 0, only)


def _between(first: Segment, sought: list[tuple[_Search, int]], last: Segment) -> Callable[[str], bool]:
    ends = first.length + last.length

    def fits(value: str) -> bool:
        stop = len(value) - last.length
        if len(value) < ends or not _is_at(value, 0, first) or not _is_at(value, stop, last):
            return False
        start = first.length
        for search, length in sought:
            start = search(value, start, stop)
            if start < 0:
                return False
            start += length
        return True

    return fits


def _is_at(value: str, start: int, segment: Segment) -> bool:
    return all(value.startswith(run, start + place) for place, run in segment.runs)


_Search = Callable[[str, int, int], int]
"""Function that finds the leftmost place between start and stop, or -1."""


def _search(segment: Segment) -> _Search:
    if segment.plain:
        text = segment.text
        return lambda value, start, stop: value.find(text, start, stop)
    return _shift_and(segment)


def _shift_and(segment: Segment) -> _Search:
    anything = (1 << segment.length) - 1
    for place, run in segment.runs:
        anything &= ~(((1 << len(run)) - 1) << place)
    allowed: dict[str, int] = {}
    """By character, the places of the segment at which it may occur; other characters match only a ``_``."""
    for place, run in segment.runs:
        for offset, character in enumerate(run, place):
            allowed[character] = allowed.get(character, anything) | 1 << offset
    last = segment.length - 1
    whole = 1 << last

    def search(value: str, start: int, stop: int) -> int:
        matched = 0
        for place in range(start, stop):
            matched = (matched << 1 | 1) & allowed.get(value[place], anything)
            if matched & whole:
                return place - last
        return -1

    return search
