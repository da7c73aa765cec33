"""The two delays of population mode: until neighbours find each other, and for each hop after that.

The time that neighbours take to find each other is a table of quantiles, with *never* at its end where contacts were
too short to tell. A contact draws from it by a hash of (seed, pair, start): the same in every window that reads it, and
whoever else is there. The hop delay is one figure. A file of delays says what they were measured on; its fingerprint of
radio and settings must be that of the scenario that uses it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from carrypost.config.tables import written
from carrypost.emu.arrays import Floats, Ints
from carrypost.emu.scenario.scenario import Scenario
from carrypost.emu.scenario.tables import ZERO
from carrypost.emu.traces.encounters import Encounters
from carrypost.errors import ConfigError, FileError
from carrypost.files import read_text, staged
from carrypost.model.times import MICROSECONDS

CONTACTS_MIN = 200
"""A table of fewer contacts says little about how long neighbours take to find each other."""
NEVER_US = np.int64(2**62)
_QUANTILES = 1_000
_Hash = NDArray[np.uint64]


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of delays."""

    discovery_s: tuple[float | None, ...]
    """Quantiles of the delay until neighbours find each other, at equal steps from the least on; None: never."""
    hop_s: float
    """Median delay from an author to a neighbour that it had found before."""
    scenario: str
    seed: str
    duration_s: float
    version: str
    """Of carrypost."""
    contacts: int
    censored: int
    """Contacts of these that ended before anybody was found."""
    hops: int
    """Hops that were measured."""
    size_max: int
    """Bytes of the largest message: a larger one may take longer."""
    fingerprint: str
    """Of the radio and the settings."""
    sha256: str = ""
    """Of all the above."""

    def digest(self) -> str:
        """The hash of everything else in the file."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, sha256=""))).hexdigest()

    def __str__(self) -> str:
        return (
            f"{self.scenario}, seed {self.seed}, {self.duration_s:g} s: {self.contacts:,} contacts, "
            f"{self.censored:,} of them censored, a hop {self.hop_s * 1_000:.1f} ms (sha256 {self.sha256[:12]})"
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
        raise FileError(f"population.delays: {path} is no file of delays, or is damaged: {error}; {again}") from None
    if found.digest() != found.sha256:
        raise FileError(f"population.delays: {path} is damaged: what it holds does not match its hash; {again}")
    if found.contacts < CONTACTS_MIN:
        told = f"it is of {found.contacts:,} contacts, and {CONTACTS_MIN} are the least"
        raise ConfigError(f"population.delays: {path} says too little: {told}; calibrate a longer run")
    return found


def fingerprint(scenario: Scenario) -> str:
    """The hash of what delays depend on: radio, settings, and how long a disk takes."""
    known: Mapping[str, Any] = {
        "radio": written(scenario.radio) | {"delay_s": scenario.delay_s},
        "settings": written(scenario.settings),
        "disk_delay_s": scenario.run.disk_delay_s,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of one run."""

    name: str
    """The calibration, for people."""
    hop_us: int
    discovery_us: Floats | None
    """Quantiles; None: neighbours find each other at once."""
    size_max: int | None = None
    """Bytes of the largest message that they hold for; None: any."""

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Return the delays that a scenario names; those of another radio or other settings are refused."""
        if scenario.population.delays == ZERO:
            return cls(ZERO, 0, None)
        path = scenario.path(scenario.population.delays)
        found = read(path)
        if found.fingerprint != fingerprint(scenario):
            raise ConfigError(
                f"population.delays: {path} was calibrated with another [radio], other [settings] or another "
                f"disk_delay_s than {scenario.name} has; calibrate with those of {scenario.name}"
            )
        quantiles = [math.inf if each is None else each * MICROSECONDS for each in found.discovery_s]
        return cls(str(found), round(found.hop_s * MICROSECONDS), np.array(quantiles), found.size_max)

    def opened_us(self, contacts: Encounters, seed: int | str) -> Ints:
        """Return when the nodes of each contact find each other; `NEVER_US` where they do not."""
        if self.discovery_us is None:
            return contacts.start_us
        at = _even(contacts, seed) * (len(self.discovery_us) - 1)
        low = at.astype(np.int64)
        found = np.isfinite(self.discovery_us[low + 1])
        least, most = (np.where(found, self.discovery_us[each], 0.0) for each in (low, low + 1))
        delay_us = np.rint(least + (most - least) * (at - low)).astype(np.int64)
        return np.where(found, contacts.start_us + delay_us, NEVER_US)


def quantiles(delay_us: Ints, censored: Ints) -> tuple[float | None, ...]:
    """Return the quantiles, in seconds, of delays of which some are only known to be longer than what was seen.

    By the estimator of Kaplan and Meier: `censored` has how long each contact was that ended without being found.
    """
    times = np.unique(delay_us)
    seen = np.searchsorted(np.sort(delay_us), times, side="right") - np.searchsorted(np.sort(delay_us), times)
    everything = np.sort(np.concatenate([delay_us, censored]))
    at_risk = len(everything) - np.searchsorted(everything, times)
    reached = 1 - np.cumprod(1 - seen / at_risk)
    place = np.searchsorted(reached, np.arange(_QUANTILES + 1) / _QUANTILES - 1e-9)
    return tuple(float(times[each]) / MICROSECONDS if each < len(times) else None for each in place.tolist())


def _even(contacts: Encounters, seed: int | str) -> Floats:
    """Return a number from 0 to 1 for each contact, by the hash of seed, pair and start."""
    names = [hashlib.sha256(repr((seed, name, "discovery")).encode()).digest()[:8] for name in contacts.nodes]
    node: _Hash = np.frombuffer(b"".join(names), "<u8")
    mixed = _mixed(_mixed(node[contacts.a]) + node[contacts.b])
    mixed = _mixed(mixed + contacts.start_us.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53


def _mixed(value: _Hash) -> _Hash:
    """Return the finalizer of splitmix64: every bit of the value changes half of the others."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
