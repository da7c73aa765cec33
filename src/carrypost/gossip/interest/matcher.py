"""Matching: the entries of a profile that a descriptor matches (JOMS-12 §III.A: a profile is the OR of patterns).

Sets of entries are bitsets. For every attribute that a profile names, a column maps a value to the entries that this
value leaves possible; a descriptor matches what all columns leave. Whole values and prefixes are looked up, everything
else runs on RE2, all patterns of a column at once.

Profiles come from strangers, so every cost is bounded beforehand: patterns are weighed before they are compiled, and
those that exceed a profile's budget, or that RE2 does not accept, count as matching; so do all that RE2 would run over
a value too long for their weight. The one invariant: a matcher may say yes too often, never no. The receiver of a
descriptor checks again, with a matcher of its `own` entries, which is exact at any cost.

Selectors are evaluated last, on what the columns leave (`Guards`). An entry with a selector is *guarded*: it matches a
descriptor only if its selector does. Selectors come from strangers, as patterns do. Those of one profile may weigh
`selector.STEPS_MAX` together, each text counted once and the light ones first. Entries whose selector exceeds that, or
is invalid, are not guarded: they match whatever their patterns match. The invariant: the guarded entries depend on
nothing but the profile. So both sides of a contact come to the same answer for every descriptor; otherwise their sets
would differ for ever, and the same messages would be offered and refused at every comparison.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, Protocol

from carrypost.config import Limits
from carrypost.errors import InvalidSelectorException
from carrypost.gossip.slots import bits
from carrypost.model.descriptor import Descriptor
from carrypost.model.descriptor_values import Selectable
from carrypost.model.pattern import DESTINATION, Entry, PatternSet, plain_forms, text_of, weight
from carrypost.model.selector import HEADER_PREFIX, STEPS_MAX, Selector

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.model.selector.evaluation import Properties


REMEMBERED_MAX: Final = 128 * 1024
"""Characters of the texts whose selectors are remembered: as many as two profiles can have. A parsed character takes up
to 200 bytes, so that a bound on the number of selectors alone would be none."""
_READING_US, _SELECTOR_STEPS_PER_US = 4, 5
"""Time to read a character of a selector, and steps of evaluation per microsecond."""
_CHOSEN_MAX: Final = 16_384
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
        return _READING_US * self._characters + self._steps // _SELECTOR_STEPS_PER_US

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
        for matches, _, cost in self._of(mask):
            self._steps += cost
            if matches(properties):
                return True
        return False

    def admitting(self, mask: int, descriptor: Descriptor) -> int:
        """Return those of these entries, all of them guarded, that admit a descriptor."""
        if descriptor.is_sealed:
            return mask
        properties = self._seen(descriptor)
        found = 0
        for matches, asking, cost in self._of(mask):
            self._steps += cost
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


BYTES_PER_WEIGHT: Final = 128
"""Memory of RE2 per instruction: twenty states, each as wide as the program, have to fit."""
PATTERN_STEPS_MAX: Final = 1 << 22
"""Instructions times bytes of a value, the most that one descriptor may cost: 10 to 20 ms if every state is new."""
MEMO_MAX: Final = 2_048
"""Number of values whose outcome is remembered, in all columns of a matcher together."""
_STEPS_PER_US: Final = 200
"""Steps of RE2 per microsecond if every state is new."""


class Slotted(Protocol):
    """The part of a copy that the index needs."""

    @property
    def slot(self) -> int:
        """The number that stands for it in bitsets."""

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor that profiles are matched against."""

    @property
    def destination(self) -> str:
        """The destination, which decides for most profiles and is found without decoding the whole descriptor."""


class Matcher:
    """A profile, compiled for matching descriptors.

    With `own`, the entries are the host's own, made by `pattern.entry`: nothing is weighed, and patterns that do not
    fit one set are split over several, each with the whole memory.
    """

    __slots__ = ("_all", "_columns", "_guarded", "_guards", "_whole", "entries", "over_forwards", "plain")

    def __init__(self, entries: Sequence[Entry], limits: Limits, *, own: bool = False) -> None:
        self.entries = tuple(entries)
        self._all = (1 << len(self.entries)) - 1
        asked: dict[str, dict[str, int]] = {}
        for index, entry in enumerate(self.entries):
            for attribute, pattern in entry.patterns:
                masks = asked.setdefault(attribute, {})
                masks[pattern] = masks.get(pattern, 0) | 1 << index
        self._columns = self._build(asked, _Budget(asked, limits.pattern_memory_bytes_max, own=own))
        self._guards = Guards(self.entries, own=own)
        over = reduce(or_, [column.over for column in self._columns], self._guards.over)
        self.over_forwards = over.bit_count()
        """Number of entries that count as matching on an attribute, or by their selector, because they are not
        evaluated."""
        self.plain: dict[str, tuple[int, ...]] | None = None
        """Entries that match each destination, if entries name nothing else, as in most profiles; without destinations
        that an entry names with a selector."""
        self._guarded: dict[str, int] = {}
        """Destinations that entries name with a selector, and all entries that name them."""
        self._whole = True
        """True if only looked-up values match: no entry asks for a prefix."""
        self._look_destinations_up()

    @property
    def spent_us(self) -> int:
        """Approximate CPU time, at worst, spent on RE2 and on selectors so far."""
        return self._guards.spent_us + sum(column.steps for column in self._columns) // _STEPS_PER_US

    @property
    def is_cheap(self) -> bool:
        """True if matching needs only lookups of values."""
        return not self._guards.guarded and not any(column.runs for column in self._columns)

    @property
    def selecting_us(self) -> int:
        """Approximate CPU time, at worst, spent on reading and evaluating selectors so far."""
        return self._guards.spent_us

    def matches(self, descriptor: Descriptor) -> bool:
        """Return True if any entry matches."""
        if self.plain is not None:
            if descriptor.destination in self.plain:
                return True
            if self._whole:
                guarded = self._guarded.get(descriptor.destination)
                return guarded is not None and self._admits(guarded, descriptor)
        mask, unguarded = self._all, ~self._guards.guarded
        for column in self._columns:
            if mask & column.bound:
                mask &= column.leaves(descriptor)
                if not mask:
                    return False
                if mask & column.decided & unguarded:
                    return True
        return self._admits(mask, descriptor)

    def which_of(self, descriptor: Descriptor) -> tuple[int, ...]:
        """Return the indexes of the matching entries, ascending."""
        if self.plain is not None:
            found = self.plain.get(descriptor.destination)
            if found is not None:
                return found
        if self.plain is not None and self._whole:
            mask = self._guarded.get(descriptor.destination, 0) if self._guarded else 0
        else:
            mask = self._all
            for column in self._columns:
                if mask & column.bound:
                    mask &= column.leaves(descriptor)
        guards = self._guards
        if doubtful := mask & guards.guarded:
            mask ^= doubtful ^ guards.admitting(doubtful, descriptor)
        return tuple(bits(mask))

    def slots_of(self, copies: Iterable[Slotted]) -> list[int]:
        """Return the slots of the copies that any entry matches."""
        plain = self.plain
        if plain is not None and self._whole and not self._guarded:
            return [copy.slot for copy in copies if copy.destination in plain] if plain else []
        matches = self.matches
        return [copy.slot for copy in copies if matches(copy.descriptor)]

    def _admits(self, mask: int, descriptor: Descriptor) -> bool:
        """Return True if any entry that the patterns leave has no selector, or one that holds."""
        doubtful = mask & self._guards.guarded
        return mask != doubtful or (doubtful != 0 and self._guards.admits(doubtful, descriptor))

    def _build(self, asked: Mapping[str, Mapping[str, int]], budget: _Budget) -> list[_Column]:
        """Build the columns, destination first, then the most common, so that few columns decide most descriptors."""
        columns = [_Column(name, masks, self._all, budget) for name, masks in asked.items()]
        columns.sort(key=lambda column: (column.name != DESTINATION, -column.bound.bit_count(), column.name))
        decided = self._all
        for column in reversed(columns):
            column.decided = decided
            decided &= ~column.bound
        return columns

    def _look_destinations_up(self) -> None:
        """Prepare the lookup for a profile that asks for nothing but whole destinations, selectors aside."""
        if not self.entries:  # As the first profile of a node, before any program subscribed.
            self.plain = {}
            return
        if len(self._columns) != 1 or self._columns[0].name != DESTINATION:
            return
        column, guarded = self._columns[0], self._guards.guarded
        if not column.looks_up:
            return
        values = {value: column.looked_up(value) for value in column.values}
        self.plain = {value: tuple(bits(mask)) for value, mask in values.items() if not mask & guarded}
        self._guarded = {value: mask for value, mask in values.items() if mask & guarded}
        self._whole = not column.has_prefixes


class _Budget:
    """The budget of a profile, shared among the patterns that RE2 has to run, light ones first."""

    __slots__ = ("_memory_bytes", "_own", "_total", "chosen", "memo_max", "value_bytes_max")

    def __init__(self, asked: Mapping[str, Mapping[str, int]], memory_bytes: int, *, own: bool) -> None:
        weighed = sorted(
            (weight(pattern), attribute, pattern)
            for attribute, masks in asked.items()
            for pattern in masks
            if plain_forms(pattern) is None
        )
        self.chosen: dict[str, dict[str, int]] = {}
        """By attribute, the weight of every pattern within the budget."""
        total = 0
        for cost, attribute, pattern in weighed:
            if (total + cost) * BYTES_PER_WEIGHT > memory_bytes and not own:
                break
            total += cost
            self.chosen.setdefault(attribute, {})[pattern] = cost
        self._own = own
        self._total = max(1, total)
        self._memory_bytes = memory_bytes
        self.value_bytes_max = sys.maxsize if own else PATTERN_STEPS_MAX // self._total
        """A longer value could cost too many steps, added up over all attributes."""
        self.memo_max = max(1, MEMO_MAX // max(1, len(asked)))

    def compiled(self, attribute: str) -> list[PatternSet]:
        """Return the chosen patterns of an attribute, compiled."""
        chosen = self.chosen.get(attribute)
        if not chosen:
            return []
        if self._own:
            return _split(list(chosen), self._memory_bytes)
        return [PatternSet(list(chosen), self._memory_bytes * sum(chosen.values()) // self._total)]


def _split(patterns: list[str], memory_bytes: int) -> list[PatternSet]:
    # RE2 does not say in advance how much memory a set needs, so halves are tried until each one
    # compiles.
    whole = PatternSet(patterns, memory_bytes)
    half = len(patterns) // 2
    if whole.taken or not half:
        return [whole]
    return _split(patterns[:half], memory_bytes) + _split(patterns[half:], memory_bytes)


class _Column:
    """The entries that remain possible, by the values of one attribute."""

    __slots__ = (
        "_base", "_budget", "_hidden", "_lengths", "_memo", "_prefixes", "_sets", "_weight",
        "bound", "decided", "free", "has_prefixes", "looks_up", "name", "over", "runs", "steps", "values",
    )  # fmt: skip

    def __init__(self, name: str, masks: Mapping[str, int], everything: int, budget: _Budget) -> None:
        self.name = name
        self._hidden = name != DESTINATION
        """True if a seal hides the attribute."""
        self.bound = 0
        """Entries that ask for this attribute."""
        self.over = 0
        """Entries whose pattern cannot be evaluated."""
        self.decided = 0
        """Entries that no later column can exclude."""
        self.steps = 0
        """Instructions times bytes, at most, that RE2 has run."""
        self.values: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        self._budget = budget
        self._memo: dict[str, int] = {}
        self._weight = sum(budget.chosen.get(name, {}).values())
        self._sets = [_MaskedSet(found, masks) for found in budget.compiled(name) if found.taken]
        self.runs = bool(self._sets)
        """True if some patterns run on RE2."""
        taken = {pattern for found in self._sets for pattern in found.patterns.taken}
        for pattern, mask in masks.items():
            self.bound |= mask
            forms = plain_forms(pattern)
            if forms is None:
                self.over |= 0 if pattern in taken else mask
                continue
            for index, texts in zip((self.values, self._prefixes), forms, strict=True):
                for text in texts:
                    index[text] = index.get(text, 0) | mask
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})
        self.free = everything & ~self.bound
        self._base = self.free | self.over
        self.has_prefixes = bool(self._prefixes)
        """True if some entry asks for everything that begins with a prefix."""
        self.looks_up = not (self._base or self._sets)
        """True if an entry matches only by one of `values`, or by a prefix of a value."""
        for value in self.values:
            self.values[value] |= self._base

    def looked_up(self, value: str) -> int:
        """Return the entries that a value leaves possible by lookups alone."""
        mask = self.values.get(value, self._base)
        for length in self._lengths:
            mask |= self._prefixes.get(value[:length], 0)
        return mask

    def leaves(self, descriptor: Descriptor) -> int:
        """Return the entries that this descriptor's value of the attribute leaves possible."""
        if self._hidden and descriptor.is_sealed:
            return self.free | self.bound  # Its readers alone can tell.
        value = text_of(descriptor, self.name)
        if value is None:
            return self.free
        if not self._lengths and not self._sets:
            return self.values.get(value, self._base)
        known = self._memo.get(value)
        if known is not None:
            return known
        mask = self.looked_up(value)
        if self._sets:
            mask |= self._run(value)
        # Cleared as a whole: an attacker that sends a new value each time would defeat any finer
        # policy, and an LRU costs more per lookup than it saves.
        if len(self._memo) >= self._budget.memo_max:
            self._memo.clear()
        self._memo[value] = mask
        return mask

    def _run(self, value: str) -> int:
        encoded = value.encode(errors="surrogatepass")  # cannot travel, must not raise
        if len(encoded) <= self._budget.value_bytes_max:
            self.steps += len(encoded) * self._weight
        mask = 0
        for found in self._sets:
            mask |= found.all if len(encoded) > self._budget.value_bytes_max else found.run(encoded)
        return mask


class _MaskedSet:
    """Patterns that run together, and the entries that ask for them."""

    __slots__ = ("_masks", "all", "patterns")

    def __init__(self, patterns: PatternSet, masks: Mapping[str, int]) -> None:
        self.patterns = patterns
        self._masks = [*(masks[pattern] for pattern in patterns.taken), 0]
        self.all = reduce(or_, self._masks)

    def run(self, value: bytes) -> int:
        numbers = self.patterns.match(value)
        if numbers is None:
            return self.all
        mask = 0
        for number in numbers:
            mask |= self._masks[number]
        return mask
