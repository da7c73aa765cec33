"""The worst profiles that a stranger can send, of patterns and of selectors: cost of reading, and cost per message.

A node reads a profile once, and then matches every message against it. The messages have texts as long as
`attribute_bytes_max` allows, all different, which is the worst case for patterns; selectors do not depend on that. Few
of these entries count as matching because their evaluation was cut short: an entry that counts as matching costs
nothing.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Final

from benchmarks._processes import Row

from carrypost.config import Limits
from carrypost.gossip.interest.matcher import Matcher
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.pattern import Entry, encode_entries
from carrypost.model.selector import STEPS_MAX, Selector

_LIMITS: Final = Limits()
_MESSAGES: Final = 20
_READ: Final = 3
"""Readings of each profile."""


def patterns() -> list[Entry]:
    """Return automata with a new state for every character of a value, as many as are run over a long one."""
    return [Entry((("text", f"[ab]*a[ab]{{{60 + number}}}"),)) for number in range(5)]


def many_patterns() -> list[Entry]:
    """As many patterns as a profile holds, each with an automaton of its own."""
    return [Entry(((f"text{number}", f"[ab]+{number}"),)) for number in range(1_900)]


def selectors() -> list[Entry]:
    """Return selectors with as many steps as a profile may use for one message, all of them used."""
    found, steps = list[Entry](), 0
    while True:
        text = f"{'+'.join(['-n'] * 330)} = {len(found)}"
        steps += Selector(text).weight
        if steps > STEPS_MAX:
            return found
        found.append(Entry((("destination", "news"),), text))


def many_selectors() -> list[Entry]:
    """Return as many short selectors as a profile holds."""
    return [Entry((("destination", "news"),), f"n=m{number}") for number in range(2_000)]


def rows() -> list[Row]:
    """Return one entry for each of them."""
    rng = random.Random(1)
    found = [_message("".join(rng.choices("ab", k=_LIMITS.attribute_bytes_max))) for _ in range(_MESSAGES)]
    made: list[Row] = []
    for make in (patterns, many_patterns, selectors, many_selectors):
        entries = make()
        reading, matching = zip(*[_spent_s(salted, found) for salted in _salted(entries)], strict=True)
        made.append({
            "profile": make.__name__.replace("_", " "),
            "bytes": len(encode_entries(entries)),
            "entries": len(entries),
            "read, CPU ms": statistics.median(reading) * 1e3,
            "a message, CPU ms": statistics.median(matching) * 1e3,
        })  # fmt: skip
    return made


def _salted(entries: list[Entry]) -> list[list[Entry]]:
    """Return the same entries again, with texts that were never read before."""
    return [
        [
            Entry(
                tuple((name, f"{text}|{salt}[z]" if each.selector is None else text) for name, text in each.patterns),
                None if each.selector is None else f"{each.selector}{salt}",
            )
            for each in entries
        ]
        for salt in range(1, _READ + 1)
    ]


def _spent_s(entries: list[Entry], found: list[Descriptor]) -> tuple[float, float]:
    begun_s = time.process_time()
    matcher = Matcher(entries, _LIMITS)
    read_s = time.process_time() - begun_s
    begun_s = time.process_time()
    for descriptor in found:
        matcher.which_of(descriptor)
    return read_s, (time.process_time() - begun_s) / len(found)


def _message(text: str) -> Descriptor:
    return Descriptor(
        author="bench", incarnation=0, sequence=1, created_us=0, deadline_us=None, destination="news", size=0,
        length=0, codec=PayloadCodec.PLAIN, root=b"", fragment_bytes=1024, attributes={"text": text, "n": 2**62},
    )  # fmt: skip
