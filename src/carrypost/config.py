"""Settings of a node and the limits on what it takes from others.

`Settings` and `Limits` are frozen values; every field is checked when the value is made, so whoever holds one
need not check again. `parse` reads text, never files: TOML, then the environment over it, then keywords over
both. A mistake raises `ConfigError`, which names the field, says what is allowed and what was found, and for
an unknown name the nearest right one.

Every collection in the core that a peer can fill names the limit that bounds it. The bounds are ours; the
papers ask only that resources per device be adjustable.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

from carrypost.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
YEAR_S = 365 * DAY_S
UNBOUNDED = 2**53
"""As good as no limit: the largest whole number that every format we speak keeps exactly."""
ENVIRONMENT_PREFIX = "CARRYPOST_"
NONE = "none"
"""How a lifetime that does not end is written where there is no None: in TOML and in the environment."""

_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
_NOTHING: Mapping[str, str] = MappingProxyType({})


class _Rule(Protocol):
    """What a field may hold. `take` and `read` raise `ValueError` for anything else."""

    @property
    def allowed(self) -> str:
        """For people: 'a whole number from 1 to 8'."""

    def take(self, value: object) -> object:
        """The value as it is kept."""

    def read(self, text: str) -> object:
        """What the text of an environment variable means; still to be taken."""


@dataclass(frozen=True, slots=True)
class _Number:
    kind: type[int | float]
    low: float
    high: float
    optional: bool = False

    @property
    def allowed(self) -> str:
        what = "a whole number" if self.kind is int else "a number"
        return f"{what} from {self.low:,} to {self.high:,}" + (f', or "{NONE}"' if self.optional else "")

    def take(self, value: object) -> object:
        if self.optional and (value is None or value == NONE):
            return None
        # True is an int to Python, but nobody means 1 by it; nan fails the comparison.
        if isinstance(value, bool) or not isinstance(value, (int, self.kind)):
            raise ValueError
        if not self.low <= value <= self.high:
            raise ValueError
        return self.kind(value)

    def read(self, text: str) -> object:
        return NONE if self.optional and text.lower() == NONE else self.kind(text)


@dataclass(frozen=True, slots=True)
class _Flag:
    allowed: str = "true or false"

    def take(self, value: object) -> object:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def read(self, text: str) -> object:
        if (word := text.lower()) in _TRUE | _FALSE:
            return word in _TRUE
        raise ValueError


@dataclass(frozen=True, slots=True)
class _Choice:
    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(f'"{word}"' for word in self.words)

    def take(self, value: object) -> object:
        if value not in self.words:
            raise ValueError
        return value

    def read(self, text: str) -> object:
        return text.lower()


@dataclass(frozen=True, slots=True)
class _Patterns:
    """A flag, or a list of patterns. Whether they compile is for the layer that owns patterns to say."""

    allowed: str = "true, false or a list of destination patterns (texts that are not empty)"

    def take(self, value: object) -> object:
        if isinstance(value, bool):
            return value
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text for text in value):
            raise ValueError
        return tuple(value)

    def read(self, text: str) -> object:
        """A flag, a list as in TOML, or one pattern: a comma may well be part of a pattern."""
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        return tomllib.loads(f"list = {text}")["list"] if text.startswith("[") else [text]


def _whole(default: int, low: int, high: int) -> int:
    return field(default=default, metadata={"rule": _Number(int, low, high)})


def _number(default: float, low: float, high: float) -> float:
    return field(default=default, metadata={"rule": _Number(float, low, high)})


def _lifetime(default: float) -> float | None:
    return field(default=default, metadata={"rule": _Number(float, 0.001, 100 * YEAR_S, optional=True)})


def _flag(default: bool) -> bool:
    return field(default=default, metadata={"rule": _Flag()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on everything that a peer can make this node keep, hold or do."""

    datagram_bytes_max: int = _whole(65_507, 576, 65_507)
    """A longer datagram is refused unread."""
    frames_max: int = _whole(512, 1, 65_536)
    """Frames in one datagram."""
    descriptor_bytes_max: int = _whole(8 * KIB, 256, MIB)
    """Encoded descriptor."""
    attributes_max: int = _whole(64, 0, 4_096)
    """Attributes of one descriptor."""
    attribute_bytes_max: int = _whole(KIB, 1, 64 * KIB)
    """An attribute's name, or its value where that is text."""
    destination_bytes_max: int = _whole(256, 1, 64 * KIB)
    """A destination's name."""
    label_bytes_max: int = _whole(256, 0, 64 * KIB)
    """A message's label."""
    message_bytes_max: int = _whole(16 * MIB, 1, UNBOUNDED)
    """Payload as sent, and as it is after decompression."""
    inflate_ratio_max: int = _whole(100, 1, 100_000)
    """Declared size of a payload by its length as sent."""
    offer_entries_max: int = _whole(512, 1, 65_536)
    """Entries of one offer frame."""
    request_handles_max: int = _whole(512, 1, 65_536)
    """Handles in one request frame."""
    heard_max: int = _whole(200, 1, 16_384)
    """Nodes in one announcement's heard-list."""
    digest_members_max: int = _whole(2_048, 64, 65_536)
    """Numbers of all kinds in one digest frame."""
    profile_bytes_max: int = _whole(64 * KIB, 64, 16 * MIB)
    """Encoded interest profile."""
    profile_entries_max: int = _whole(2_048, 1, 65_536)
    """Entries of one interest profile."""
    pattern_bytes_max: int = _whole(256, 1, 64 * KIB)
    """Text of one pattern."""
    selector_bytes_max: int = _whole(KIB, 1, 64 * KIB)
    """Text of one selector."""
    profiles_max: int = _whole(256, 1, 65_536)
    """Distinct profiles kept."""
    pattern_memory_bytes_max: int = _whole(8 * MIB, 64 * KIB, UNBOUNDED)
    """Compiled patterns of one profile."""
    neighbours_max: int = _whole(256, 1, 65_536)
    """Neighbours at one time."""
    offers_open_max: int = _whole(4_096, 1, UNBOUNDED)
    """Per neighbour: messages that it offered, that are wanted, and that are not here yet."""
    partials_max: int = _whole(256, 1, UNBOUNDED)
    """Half-received messages."""
    fragment_buffer_bytes_max: int = _whole(4 * MIB, 16 * KIB, UNBOUNDED)
    """Fragments that wait for the rest of their piece to be verified; at least one piece fits."""
    descriptor_buffer_bytes_max: int = _whole(256 * KIB, 1 * KIB, UNBOUNDED)
    """Parts of descriptors, profiles and hash lists that are not whole yet."""
    seen_max: int = _whole(1_000_000, 1, UNBOUNDED)
    """Ids remembered without a copy."""
    seen_bytes_max: int = _whole(128 * MIB, 1, UNBOUNDED)
    """Descriptors of those."""
    unconfirmed_max: int = _whole(10_000, 1, UNBOUNDED)
    """Deliveries that the application has not confirmed; their copies are pinned."""
    unconfirmed_bytes_max: int = _whole(64 * MIB, 1, UNBOUNDED)
    """Payload of those deliveries."""
    share_author: float = _number(0.25, 0.001, 1.0)
    """Share of a full cache that one author may hold."""
    share_neighbour: float = _number(0.5, 0.001, 1.0)
    """Share of a full cache that one giver may have filled."""
    link_frames_per_s: int = _whole(20_000, 1, UNBOUNDED)
    """Frames taken from one neighbour."""
    link_bytes_per_s: int = _whole(32 * MIB, KIB, UNBOUNDED)
    """Bytes taken from one neighbour."""
    link_forgeries_per_s: int = _whole(20, 1, UNBOUNDED)
    """Signatures that do not fit, after which a link's descriptors are refused unread."""
    link_profiles_per_s: int = _whole(2, 1, UNBOUNDED)
    """Profiles compiled for one neighbour."""
    refusals_max: int = _whole(1_000, 1, UNBOUNDED)
    """Refusals that wait to be told to the driver; more are counted together."""

    def replace(self, **changes: object) -> Limits:
        """These limits with some changed."""
        return dataclasses.replace(self, **_checked({"limits": changes})["limits"])

    def __post_init__(self) -> None:
        _keep_checked(self, "limits.")
        largest = max(self.descriptor_bytes_max, self.profile_bytes_max)
        if self.descriptor_buffer_bytes_max < largest:
            raise ConfigError(
                "limits.descriptor_buffer_bytes_max must hold the largest descriptor and profile "
                f"({largest:,}), not {self.descriptor_buffer_bytes_max:,}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one node behaves. The defaults are those of a real node; `emulated` has those of emulation."""

    altruistic: bool | tuple[str, ...] = field(default=False, metadata={"rule": _Patterns()})
    """Carry what nobody here asked for: never, always, or where the destination matches one of these."""
    horizon_hops: int = _whole(1, 1, 8)
    """How far an interest profile travels; 1: to direct neighbours."""
    announce_s_min: float = _number(1.0, 0.01, HOUR_S)
    """Shortest period of announcements: something changed."""
    announce_s_max: float = _number(5.0, 0.01, HOUR_S)
    """Longest period of announcements: all is quiet."""
    beacons: bool = _flag(True)
    """Announce periodically; off where the driver tells of every contact (ideal emulation)."""
    paper_mode: bool = _flag(False)
    """As the papers have it: fixed period, full offers, stop-and-wait."""
    cache_messages_max: int = _whole(20_000, 1, UNBOUNDED)
    """Messages in the cache."""
    cache_bytes_max: int = _whole(256 * MIB, 1, UNBOUNDED)
    """Payload bytes in the cache."""
    lifetime_s_default: float | None = _lifetime(DAY_S)
    """Lifetime of a message sent without one."""
    lifetime_s_max: float | None = _lifetime(30 * DAY_S)
    """Own messages live at most so long; foreign ones that would live longer are refused."""
    mtu_bytes: int = _whole(1_200, 576, 65_507)
    """Longest datagram sent."""
    security: Literal["signed", "off"] = field(default="signed", metadata={"rule": _Choice(("signed", "off"))})
    """Whether messages are signed and signatures demanded."""
    compress: bool = _flag(True)
    """Compress payloads at publication where that makes them shorter."""
    coalesce_s: float = _number(0.1, 0.0, 60.0)
    """How long something new may wait for company before it is offered."""
    digest_every: int = _whole(12, 1, 100_000)
    """Sets are compared again every so many announcements, because beliefs about a neighbour go stale."""
    shares: bool = _flag(True)
    """Keep one author or neighbour from filling a full cache."""
    skew_s_max: float = _number(600.0, 0.0, YEAR_S)
    """How far ahead of the local clock a message may be dated."""
    window_bytes_max: int = _whole(256 * KIB, KIB, UNBOUNDED)
    """Bytes on their way to one neighbour that it has not acknowledged."""
    limits: Limits = field(default_factory=Limits)
    """Bounds on what peers can make this node keep, hold or do."""

    @classmethod
    def emulated(cls, **changes: object) -> Settings:
        """Defaults of emulation and testing (security off, no end to lifetimes), with some fields changed."""
        return cls(security="off", lifetime_s_default=None, lifetime_s_max=None).replace(**changes)

    def replace(self, **changes: object) -> Settings:
        """These settings with some fields changed; `limits` may be a table of those limits that change."""
        return _changed(self, _checked(changes))

    def __post_init__(self) -> None:
        if not isinstance(self.limits, Limits):
            raise ConfigError(f"limits must be Limits here (or a table in `replace`), not {self.limits!r}")
        _keep_checked(self, "")
        if self.announce_s_min > self.announce_s_max:
            raise ConfigError(
                f"announce_s_min must be at most announce_s_max ({self.announce_s_max:,}), not {self.announce_s_min:,}"
            )
        if self.mtu_bytes > self.limits.datagram_bytes_max:
            raise ConfigError(
                f"mtu_bytes must be at most limits.datagram_bytes_max ({self.limits.datagram_bytes_max:,}), "
                f"not {self.mtu_bytes:,}"
            )


def parse(text: str = "", environment: Mapping[str, str] = _NOTHING, **keywords: object) -> Settings:
    """Settings from TOML text, environment variables over it, keywords over both.

    Top-level keys of the text are fields of `Settings`, the table ``[limits]`` has those of `Limits`.
    Variables are called ``CARRYPOST_<FIELD>`` and ``CARRYPOST_LIMITS_<FIELD>``; one with that prefix that
    names no field is an error, others are none of our business.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the settings are not TOML: {error}") from None
    changes = _checked(table, "in the settings, ")
    for above in (_from_environment(environment), _checked(keywords)):
        limits = changes["limits"] | above["limits"]
        changes |= above | {"limits": limits}
    # Built once, from all three: only the outcome has to be consistent.
    return _changed(Settings(), changes)


_RULES: dict[str, _Rule] = {
    prefix + each.name: each.metadata["rule"]
    for cls, prefix in ((Settings, ""), (Limits, "limits."))
    for each in dataclasses.fields(cls)
    if each.metadata
}
_VARIABLES = {ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name for name in _RULES}


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _taken(name: str, value: object, where: str = "") -> object:
    """The value as the field called `name` keeps it."""
    if (rule := _RULES.get(name)) is None:
        raise ConfigError(f"{where}{name} is not a setting{_nearest(name, [*_RULES, 'limits'])}")
    try:
        return rule.take(value)
    except ValueError:
        raise ConfigError(f"{where}{name} must be {rule.allowed}, not {value!r}") from None


def _keep_checked(value: Settings | Limits, prefix: str) -> None:
    for each in dataclasses.fields(value):
        if each.metadata:
            object.__setattr__(value, each.name, _taken(prefix + each.name, getattr(value, each.name)))


def _checked(changes: Mapping[str, object], where: str = "") -> dict[str, Any]:
    """The changes as fields keep them; always with a dict of `limits`."""
    limits = changes.get("limits", {})
    if isinstance(limits, Limits):
        limits = dataclasses.asdict(limits)
    if not isinstance(limits, Mapping):
        raise ConfigError(f"{where}limits must be a table of limits, not {limits!r}")
    taken = {name: _taken(name, value, where) for name, value in changes.items() if name != "limits"}
    return taken | {"limits": {name: _taken(f"limits.{name}", value, where) for name, value in limits.items()}}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    changes: dict[str, Any] = {"limits": {}}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if (name := _VARIABLES.get(variable)) is None:
            raise ConfigError(f"{variable} is not a setting{_nearest(variable, _VARIABLES)}")
        rule = _RULES[name]
        try:
            value = rule.take(rule.read(text.strip()))
        except ValueError:
            raise ConfigError(f"{variable} must be {rule.allowed}, not {text!r}") from None
        table = changes["limits"] if name.startswith("limits.") else changes
        table[name.removeprefix("limits.")] = value
    return changes


def _changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    limits = settings.limits.replace(**changes["limits"])
    return dataclasses.replace(settings, **changes | {"limits": limits})
