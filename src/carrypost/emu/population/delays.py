"""The two delays of population mode: until neighbours have found each other, and for each hop after that.

Both are tables of quantiles, with *never* at the end where contacts were too short to tell. A contact draws from its
table by a hash of (seed, pair, start), a hop by a hash of (seed, pair, time of the gain): the same in every window that
reads it, whatever else is there. Hops have three tables: for what a node publishes, for what it was given, and for what
it was given while its giver had found the neighbour, too. Hosts leave that to the giver, and only offer what does not
arrive.

A file of delays says what they were measured on; its fingerprint of radio and settings must be that of the scenario
that uses it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import numpy as np

from carrypost.arrays import Flags, Ints
from carrypost.config.rules import written
from carrypost.emu.scenario import Scenario
from carrypost.emu.scenario_tables import ZERO
from carrypost.errors import ConfigError, FileError
from carrypost.log.files import read_text, staged
from carrypost.model.times import MICROSECONDS
from carrypost.traces.encounters import Encounters

CONTACTS_MIN = 200
"""A table of fewer contacts says little about how long neighbours take to find each other."""
NEVER_US = 2**62
QUANTILES = 1_024
"""Entries of a table: the middle of as many equal shares."""
WORD = 2**30 - 1
"""Mask of the words that draws are made of: Python calculates fastest with numbers of up to 30 bits."""
SPREAD = 0x278DDE6D
"""2³⁰ by the golden ratio, odd. Multiplied by this, all bits of a word change the high ones (Fibonacci hashing)."""
SHIFT = 20
"""Leaves the ten bits of a word that a table is indexed by."""
Quantiles = Annotated[tuple[float | None, ...], msgspec.Meta(min_length=QUANTILES, max_length=QUANTILES)]
"""Delays in seconds, ascending; None: never."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of delays."""

    discovery_s: Quantiles
    """From the start of a contact until a message that one node has is with the other."""
    published_s: Quantiles
    """From a publication until it is with a neighbour that was found before."""
    relayed_s: Quantiles
    """The same for a gain."""
    awaited_s: Quantiles
    """The same for a gain whose giver had found the neighbour as well."""
    scenario: str
    seed: str
    duration_s: float
    version: str
    """Of carrypost."""
    contacts: int
    censored: int
    """Contacts of these that ended before either node found the other."""
    hops: int
    """Hops that were measured, of all kinds."""
    size_max: int
    """Bytes of the largest message: a larger one may take longer."""
    fingerprint: str
    """Of the radio and the settings."""
    sha256: str = ""
    """Of all the above."""

    def digest(self) -> str:
        """Return the hash of everything else in the file."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, sha256=""))).hexdigest()

    def __str__(self) -> str:
        return (
            f"{self.scenario}, seed {self.seed}, {self.duration_s:g} s: {self.contacts:,} contacts, "
            f"{self.censored:,} of them censored, {self.hops:,} hops (sha256 {self.sha256[:12]})"
        )

    def write(self, path: Path) -> None:
        """Write the file; it is there whole, or not at all."""
        whole = msgspec.structs.replace(self, sha256=self.digest())
        with staged(path) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")


def read(path: Path) -> Calibration:
    """Return the calibration of a file; one that is missing, damaged or of too few contacts is refused."""
    again = "`carrypost emu calibrate` makes it"
    text = read_text(path, f"population.delays: {path} cannot be read ({again})", ConfigError)
    try:
        found = msgspec.json.decode(text, type=Calibration)
    except msgspec.DecodeError as error:
        raise FileError(
            f"population.delays: {path} must be a file of delays, and is not or is damaged: {error}; {again}"
        ) from None
    if found.digest() != found.sha256:
        raise FileError(f"population.delays: {path} is damaged: its content does not match its hash; {again}")
    if found.contacts < CONTACTS_MIN:
        wrong = f"it is from {found.contacts:,} contacts, and needs at least {CONTACTS_MIN}"
        raise ConfigError(f"population.delays: {path} has too few events: {wrong}; calibrate a longer run")
    return found


def fingerprint(scenario: Scenario) -> str:
    """Return the hash of what delays depend on: radio, settings, and how long a disk takes."""
    known: Mapping[str, Any] = {
        "radio": written(scenario.radio) | {"delay_s": scenario.delay_s},
        "settings": written(scenario.settings),
        "disk_delay_s": scenario.run.disk_delay_s,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


class Hops(NamedTuple):
    """Hop delays for the sweep, in microseconds, and the words by which nodes draw from them."""

    published_us: Sequence[int]
    relayed_us: Sequence[int]
    awaited_us: Sequence[int]
    leaving: Sequence[int]
    arriving: Sequence[int]


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of one run."""

    name: str
    """The calibration, for people."""
    discovery_us: Ints
    hops_us: tuple[Ints, Ints, Ints]
    """Of publications, of gains, and of gains that are awaited."""
    size_max: int | None = None
    """Bytes of the largest message that they hold for; None: any."""

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Return the delays that a scenario names; those of another radio or other settings are refused."""
        if scenario.population.delays == ZERO:
            none = np.zeros(QUANTILES, np.int64)
            return cls(ZERO, none, (none, none, none))
        path = scenario.path(scenario.population.delays)
        found = read(path)
        if found.fingerprint != fingerprint(scenario):
            raise ConfigError(
                f"population.delays: {path} was calibrated with another [radio], other [settings] or another "
                f"disk_delay_s than {scenario.name} has; calibrate with those of {scenario.name}"
            )
        hops_us = _table_us(found.published_s), _table_us(found.relayed_s), _table_us(found.awaited_s)
        return cls(str(found), _table_us(found.discovery_s), hops_us, found.size_max)

    def opened_us(self, contacts: Encounters, seed: int | str) -> Ints:
        """Return when the nodes of each contact find each other; `NEVER_US` or later where they do not."""
        words = _words(contacts.nodes, seed)
        word = (contacts.start_us & WORD) ^ words[contacts.a, 0] ^ words[contacts.b, 1]
        delay_us: Ints = self.discovery_us[(word * SPREAD & WORD) >> SHIFT]
        return contacts.start_us + delay_us

    def hops(self, nodes: Sequence[str], seed: int | str) -> Hops:
        """Return the hop delays of these nodes."""
        words = _words(nodes, seed)
        published_us, relayed_us, awaited_us = (each.tolist() for each in self.hops_us)
        return Hops(published_us, relayed_us, awaited_us, words[:, 2].tolist(), words[:, 3].tolist())


def quantiles(since_us: Ints, until_us: Ints, seen: Flags) -> Quantiles:
    """Return the quantiles, in seconds, of delays that are not all known to their end.

    By the estimator of Kaplan and Meier. Each delay was looked at from `since_us` to `until_us`. If it was `seen`, it
    ended then; otherwise it is only known to be longer.
    """
    times, many = np.unique(until_us[seen], return_counts=True)
    at_risk = np.searchsorted(np.sort(since_us), times, side="right") - np.searchsorted(np.sort(until_us), times)
    reached = 1 - np.cumprod(1 - many / at_risk)
    place = np.searchsorted(reached, (np.arange(QUANTILES) + 0.5) / QUANTILES)
    return tuple(float(times[each]) / MICROSECONDS if each < len(times) else None for each in place.tolist())


def _table_us(quantiles_s: Quantiles) -> Ints:
    return np.array([NEVER_US if each is None else round(each * MICROSECONDS) for each in quantiles_s], np.int64)


def _words(nodes: Sequence[str], seed: int | str) -> Ints:
    """Return four words for each node, by the hash of its name and the seed."""
    found = b"".join([hashlib.sha256(repr((seed, name)).encode()).digest() for name in nodes])
    return np.frombuffer(found, "<i8").reshape(-1, 4) & WORD
