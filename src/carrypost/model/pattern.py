r"""Interest patterns: the contents of subscriptions (JOMS-12 §III.A, JOMS-15 §2.2).

An entry maps attributes to regular expressions and matches a descriptor that has every one of these attributes with a
value that matches as a whole; other attributes do not matter. A profile is a set of entries. This module defines the
meaning and the wire form of an entry; `gossip.interest.matcher` evaluates many at once.

Patterns are RE2's, and RE2 alone runs them: never `re`, whose time a stranger's pattern could make exponential. A dot
matches any character, including line breaks, so that ``ChatRoom.*`` is exactly "begins with ChatRoom"; ``^`` and ``$``
are the ends of the value; case matters unless the pattern says ``(?i)``; the empty pattern matches the empty value.
Values that are not text are matched by their `text_form`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import msgspec
import re2  # type: ignore[import-untyped]  # the package has no type stubs; all use of it is in this module

from carrypost.config import Limits, text_form
from carrypost.errors import DecodeError, LimitError, PatternError
from carrypost.model.address import SPECIAL
from carrypost.model.descriptor import Descriptor
from carrypost.model.descriptor_values import field_of
from carrypost.model.selector import Selector

DESTINATION = "destination"
PROFILE_DIGEST_BYTES = 8
CARRIED_HOPS = 8
"""Hops of an entry that is carried for any node: too far away ever to be passed on."""
_LIMITS = Limits()


class Entry(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One subscription as neighbours see it."""

    patterns: tuple[tuple[str, str], ...]
    """(attribute, pattern), ascending by attribute; every one has to match."""
    selector: str | None = None
    """Text of a message selector that has to hold as well."""
    hops: Annotated[int, msgspec.Meta(ge=0, le=CARRIED_HOPS)] = 0
    """Distance of the subscriber in hops: 0 is the sender of the profile."""


def entry(pattern: str | Mapping[str, str], selector: str | None = None, *, limits: Limits = _LIMITS) -> Entry:
    """Make an entry for a destination's pattern, or for several attributes; raises `PatternError`.

    An invalid selector raises `InvalidSelectorException`, which is a `PatternError`; a blank text means no selector.
    `limits` are those of the subscribing node: neighbours with the same limits can then evaluate the entry.
    """
    if not isinstance(pattern, str | Mapping):
        raise PatternError(
            f"a pattern must be a str, or a mapping of attributes to patterns, not {type(pattern).__name__}"
        )
    if selector is not None and not Selector(selector).weight:
        selector = None
    patterns = {DESTINATION: pattern} if isinstance(pattern, str) else dict(pattern)
    if not patterns:
        raise PatternError("an interest must name at least one attribute; use destination '.*' for everything")
    made = Entry(tuple(sorted(patterns.items())), selector)
    check_entry(made, limits)
    return made


def check_entry(one: Entry, limits: Limits) -> None:
    """Raise `PatternError` unless neighbours with these limits can evaluate the entry."""
    try:
        excess = _excess(one, limits)
    except (AttributeError, UnicodeEncodeError):
        raise PatternError(f"attributes, patterns and selectors must be Unicode text, not {one.patterns!r}") from None
    if excess is not None:
        raise PatternError(excess)
    for attribute, text in one.patterns:
        _validate(attribute, text, limits.pattern_memory_bytes_max)


def text_of(descriptor: Descriptor, attribute: str) -> str | None:
    """Return the text that a pattern for `attribute` has to match, or None if the descriptor has no such attribute.

    ``destination`` is always the field. Other names are the application's attributes and, if it has none of that name,
    `PATTERN_FIELDS`.
    """
    if attribute == DESTINATION:
        return descriptor.destination
    value = descriptor.attributes.get(attribute)
    if value is None:
        value = field_of(descriptor, attribute)
    return value if value is None or isinstance(value, str) else text_form(value)


def whole_destination(one: Entry) -> Entry:
    """Return the entry that accepts all messages of the destinations of which this one accepts some."""
    patterns = tuple(each for each in one.patterns if each[0] == DESTINATION)
    if not patterns:
        raise PatternError(
            "an ordered subscription must name only its destination, since the order includes every message of it"
        )
    return Entry(patterns)


# ---------------------------------------------------------------------------------------------- the wire


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Return a profile in its wire form: a set, so that neither order nor repetition changes its digest."""
    return _ENCODER.encode(sorted(set(entries), key=_rank))


def decode_entries(encoded: bytes, limits: Limits) -> tuple[Entry, ...]:
    """Return the entries of a profile; raise `DecodeError` or `LimitError`.

    An entry that this host cannot evaluate does not void the others, because its limits or its version may differ from
    the neighbour's: this host over-forwards. A pattern that RE2 does not take and a selector that does not parse are
    left as they are, and count as matching. An entry beyond the limits is widened.
    """
    if len(encoded) > limits.profile_bytes_max:
        raise LimitError("profile", f"a profile of {len(encoded)} bytes; {limits.profile_bytes_max} are allowed")
    try:
        entries = _DECODER.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError("profile", str(error)) from None
    if len(entries) > limits.profile_entries_max:
        raise LimitError("profile", f"{len(entries)} entries; {limits.profile_entries_max} are allowed")
    for one in entries:
        names = [attribute for attribute, _ in one.patterns]
        if not names or any(left >= right for left, right in pairwise(names)):
            raise DecodeError("profile", "an entry's attributes are not ascending, or there are none")
    return tuple([one if _excess(one, limits) is None else _widened(one, limits) for one in entries])


def profile_digest(encoded: bytes) -> bytes:
    """Return the 8 bytes that identify a profile."""
    return hashlib.sha256(encoded).digest()[:PROFILE_DIGEST_BYTES]


def _rank(one: Entry) -> tuple[tuple[tuple[str, str], ...], str, bool, int]:
    return one.patterns, one.selector or "", one.selector is None, one.hops


def _excess(one: Entry, limits: Limits) -> str | None:
    """Return the limit that an entry exceeds; None if it is within the limits."""
    names = [attribute for attribute, _ in one.patterns if attribute != DESTINATION]
    if len(names) > limits.attributes_max:
        return f"{len(names)} attributes; {limits.attributes_max} are allowed (limits.attributes_max)"
    texts = [("attribute", name, limits.attribute_bytes_max) for name in names]
    texts += [("pattern", text, limits.pattern_bytes_max) for _, text in one.patterns]
    if one.selector is not None:
        texts.append(("selector", one.selector, limits.selector_bytes_max))
    for what, text, bytes_max in texts:
        size = len(text.encode())
        if size > bytes_max:
            return f"the {what} {text[:32]!r}... has {size} bytes; {bytes_max} are allowed (limits.{what}_bytes_max)"
    return None


def _widened(one: Entry, limits: Limits) -> Entry:
    """Return an entry within the limits that matches everything that this one matches, and perhaps more."""
    kept = tuple([each for each in one.patterns if _excess(Entry((each,)), limits) is None])
    if _excess(Entry(kept), limits) is not None:  # Each is within the limits, but there are too many.
        kept = tuple([each for each in kept if each[0] == DESTINATION])
    selector = one.selector if _excess(Entry((), one.selector), limits) is None else None
    return Entry(kept or ((DESTINATION, ".*"),), selector, one.hops)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[Entry, ...])


# ------------------------------------------------------------------------------------- reading a pattern

_PLAIN = re.compile(r"(?P<text>(?:[^\\.+*?()|\[\]{}^$]|\\[!-/:-@\[-^`{-~ ])*)(?P<prefix>\.\*)?(?P<more>\|)?", re.DOTALL)
_READ_MAX = 4_096
"""Number of parsed patterns that are remembered: a profile is made again for every entry added or removed."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@lru_cache(_READ_MAX)
def plain_forms(pattern: str) -> tuple[frozenset[str], frozenset[str]] | None:
    r"""Return whole values and prefixes, if the pattern is nothing but an alternation of them; else None.

    ``English|French`` is two values, ``a\.b|ChatRoom.*`` one value and one prefix. Such patterns are looked up, not
    run. If in doubt the result is None.
    """
    if SPECIAL.search(pattern) is None:  # by far the most frequent case
        return frozenset((pattern,)), frozenset()
    values: set[str] = set()
    prefixes: set[str] = set()
    for found in _PLAIN.finditer(pattern):
        (prefixes if found["prefix"] else values).add(_ESCAPED.sub(r"\1", found["text"]))
        if not found["more"]:
            return (frozenset(values), frozenset(prefixes)) if found.end() == len(pattern) else None
    return None


def beginnings(pattern: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return whole values and prefixes such that every matching value is one of them, or begins with one."""
    forms = plain_forms(pattern)
    if forms is not None:
        return forms
    special = SPECIAL.search(pattern)
    assert special is not None  # else it would be plain
    at = special.start()
    if "|" in pattern:
        at = 0
    elif pattern[at] in "*?{+":
        at -= 1  # The character before it may be missing.
    return frozenset(), frozenset((pattern[: max(0, at)],))


_FOLDS = re.compile(r"\(\?[msU]*i")
_TOKEN = re.compile(
    r"""(?P<quote>\\Q.*?(?:\\E|\Z))
    | \{(?P<least>[0-9]+)(?:,(?P<most>[0-9]*))?\}
    | (?P<script>\\[pP](?:\{[^}]*\}|.))
    | (?P<hex>\\x(?:\{[^}]*\}|..))
    | (?P<set>\\.)
    | (?P<class>\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\])
    | (?P<operator>[*+?|()^$])
    | (?P<dot>\.)
    | (?P<ascii>[\x00-\x7f])
    | (?P<character>.)""",
    re.VERBOSE | re.DOTALL,
)
_WEIGHT = {"script": 2048, "hex": 4, "set": 16, "operator": 2, "dot": 8, "ascii": 1, "character": 4}
_FOLDED = {"hex": 16, "set": 32, "ascii": 6, "character": 16}
_PATTERN_WEIGHT = 16


@lru_cache(_READ_MAX)
def weight(pattern: str) -> int:
    r"""Return an upper bound of the instructions that RE2 makes of a pattern, without compiling it.

    A few bytes can stand for very many instructions (``\pL{1000}``: more than a million), and compiling costs time even
    with bounded memory. A repetition multiplies the atom before it, and after a group everything before, including the
    group.
    """
    folds = _FOLDS.search(pattern) is not None
    total = atom = 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup or ""
        if kind in ("least", "most"):
            copies = max(int(token["least"]), int(token["most"] or 0)) + 1
            total = total + copies * (atom + 1) if atom else (total + 1) * copies
            atom = 0
            continue
        if kind == "class":
            cost = _class_weight(token[0], folds=folds)
        elif kind == "quote":
            cost = 16 * len(token[0])
        else:
            cost = _FOLDED[kind] if folds and kind in _FOLDED else _WEIGHT[kind]
        atom = 0 if kind in ("operator", "quote") else cost
        total += cost
    return total + _PATTERN_WEIGHT


def _class_weight(text: str, *, folds: bool) -> int:
    escapes = text.count("\\")
    scripts = text.count("\\p") + text.count("\\P")
    if folds or not text.isascii():
        return 64 + 16 * len(text) + scripts * _WEIGHT["script"]
    if escapes or "^" in text:
        return 16 + 4 * len(text) + 16 * escapes + scripts * _WEIGHT["script"]
    return 2 * len(text)


# --------------------------------------------------------------------------------------- running patterns


class PatternSet:
    """Patterns that RE2 runs together over a value, silently and within `memory_bytes`.

    RE2 reports "no match" when its automaton runs out of memory. A last pattern that matches every text distinguishes
    the two.
    """

    __slots__ = ("_set", "taken")

    def __init__(self, patterns: Sequence[str], memory_bytes: int) -> None:
        self.taken: list[str] = []
        """The patterns by number, without those that RE2 does not accept; empty if they do not fit."""
        self._set = re2.Set.FullMatchSet(_options(memory_bytes))
        for pattern in patterns:
            try:
                self._set.Add(pattern)
            except (re2.error, UnicodeEncodeError):
                continue
            self.taken.append(pattern)
        try:
            self._set.Add(".*")
            self._set.Compile()
        except re2.error:
            self.taken = []

    def match(self, value: bytes) -> list[int] | None:
        """Return the numbers of the matching patterns, in any order; the number after the last stands for none.

        None if that cannot be determined.
        """
        numbers: list[int] | None = self._set.Match(value) if self.taken else None
        return numbers


def _options(memory_bytes: int) -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory_bytes
    options.dot_nl = True
    options.never_capture = True
    return options


def _validate(attribute: str, pattern: str, memory_bytes: int) -> None:
    if PatternSet([pattern], memory_bytes).taken:
        return
    try:
        re2.compile(pattern, _options(memory_bytes))  # only for its message; what fails is not kept
    except re2.error as error:
        why = error.args[0] if error.args else ""
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise PatternError(f"the pattern {pattern!r} for {attribute!r} is not valid: {text}") from None
    raise PatternError(f"the pattern {pattern!r} for {attribute!r} is too large")
