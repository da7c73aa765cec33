"""The selectors of a profile, applied to what its patterns leave.

An entry with a selector is *guarded*: it matches a descriptor only if its selector does. Selectors come from strangers,
as patterns do. Those of one profile may weigh `selector.STEPS_MAX` together, each text counted once and the light ones
first. Entries whose selector exceeds that, or is invalid, are not guarded: they match whatever their patterns match.
The invariant: the guarded entries depend on nothing but the profile. So both sides of a contact come to the same answer
for every descriptor; otherwise their sets would differ for ever, and the same messages would be offered and refused at
every comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.errors import InvalidSelectorException
from carrypost.gossip.slots import bits
from carrypost.model.selector import HEADER_PREFIX, STEPS_MAX, Selector
from carrypost.model.visible import Selectable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from carrypost.model.descriptor import Descriptor
    from carrypost.model.pattern import Entry
    from carrypost.model.selector.values import Properties

REMEMBERED_MAX: Final = 128 * 1024
"""Characters of the texts whose selectors are remembered: as many as two profiles can have. A parsed character takes up
to 200 bytes, so that a bound on the number of selectors alone would be none."""
_READING_US, _STEPS_PER_US = 4, 5
"""Time to read a character of a selector, and steps of evaluation per microsecond."""
_CHOSEN_MAX = 16_384
"""Number of selectors in all remembered sets of entries."""
_Guard = tuple["Callable[[Properties], bool]", int, int]
"""The evaluation of a selector, the entries that have it, and its weight."""


class Guards:
    """The selectors of one profile. Sets of entries are bitsets, by their places in the profile."""

    __slots__ = ("_at", "_characters", "_chosen", "_fields", "_gathered", "_steps", "guarded", "over")

    def __init__(self, entries: Sequence[Entry], *, own: bool) -> None:
        asking: dict[str, int] = {}
        for place, entry in enumerate(entries):
            if entry.selector is not None:
                asking[entry.selector] = asking.get(entry.selector, 0) | 1 << place
        self.guarded = 0
        """Entries whose selector is evaluated."""
        self.over = 0
        """Entries whose selector is not evaluated, because there is no room for it or it is invalid."""
        self._at: dict[int, _Guard] = {}
        """Guards by the place of a guarded entry."""
        self._chosen: dict[int, tuple[_Guard, ...]] = {}
        """Guards by a set of guarded entries: patterns leave most descriptors to one of few sets."""
        self._gathered = 0
        self._characters = sum(map(len, asking))
        self._steps = 0
        self._fields = any(HEADER_PREFIX in text for text in asking)
        """True if a selector may name a header field. Providing these takes longer than most selectors do."""
        evaluated = _within_budget(asking, own=own) if asking else {}
        for text, mask in asking.items():
            selector = evaluated.get(text)
            if selector is None:
                self.over |= mask
                continue
            self.guarded |= mask
            self._at.update(dict.fromkeys(bits(mask), (selector.matches, mask, selector.weight)))

    @property
    def spent_us(self) -> int:
        """Approximate CPU time, at worst, spent on reading and evaluating the selectors so far."""
        return _READING_US * self._characters + self._steps // _STEPS_PER_US

    def _seen(self, descriptor: Descriptor) -> Properties:
        """Return the properties of a message that selectors see."""
        return Selectable(descriptor) if self._fields else descriptor.attributes

    def admits(self, mask: int, descriptor: Descriptor) -> bool:
        """Return True if any of these entries, all of them guarded, admits a descriptor.

        All admit a sealed message, whose properties only its readers see.
        """
        if descriptor.is_sealed:
            return True
        properties = self._seen(descriptor)
        for matches, _, weight in self._of(mask):
            self._steps += weight
            if matches(properties):
                return True
        return False

    def admitting(self, mask: int, descriptor: Descriptor) -> int:
        """Return those of these entries, all of them guarded, that admit a descriptor."""
        if descriptor.is_sealed:
            return mask
        properties = self._seen(descriptor)
        found = 0
        for matches, asking, weight in self._of(mask):
            self._steps += weight
            if matches(properties):
                found |= asking
        return found & mask

    def _of(self, mask: int) -> tuple[_Guard, ...]:
        """Return the selectors of these entries, each once."""
        known = self._chosen.get(mask)
        if known is None:
            known = tuple({guard[1]: guard for guard in map(self._at.__getitem__, bits(mask))}.values())
            self._gathered += len(known)
            if self._gathered > _CHOSEN_MAX:
                self._chosen, self._gathered = {}, len(known)
            self._chosen[mask] = known
        return known


def _within_budget(texts: Iterable[str], *, own: bool) -> dict[str, Selector]:
    """Return the selectors that are evaluated: all of them, if they are the host's own."""
    read = [selector for text in texts if (selector := _read(text)) is not None]
    if own:
        return {selector.text: selector for selector in read}
    # Light ones first, ties by text: the choice must not depend on the order of entries, which
    # differs between the two sides of a contact.
    read.sort(key=lambda selector: (selector.weight, selector.text))
    chosen, steps = {}, 0
    for selector in read:
        steps += selector.weight
        if steps > STEPS_MAX:
            break
        chosen[selector.text] = selector
    return chosen


class _Remembered:
    """Selectors by their texts, None for invalid texts: the same profiles are made and seen again and again."""

    __slots__ = ("_characters", "_selectors")

    def __init__(self) -> None:
        self._selectors: dict[str, Selector | None] = {}  # least recently used first
        self._characters = 0

    def __call__(self, text: str) -> Selector | None:
        known = self._selectors
        if text in known:
            selector = known[text] = known.pop(text)
            return selector
        try:
            selector = Selector(text)
        except InvalidSelectorException:
            selector = None
        known[text] = selector
        self._characters += len(text)
        while self._characters > REMEMBERED_MAX:
            oldest = next(iter(known))
            del known[oldest]
            self._characters -= len(oldest)
        return selector


_read = _Remembered()
