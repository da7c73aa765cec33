"""Scenarios: one TOML file that says who takes part, who meets whom, what is published and what goes wrong.

A `Scenario` is a frozen value; everything in it was checked, the files that it names were not read yet. An unknown key
is an error that names the nearest right one, a wrong value one that says what is allowed; both name file and line.
`text` is the scenario as it is run, overrides included: a record that carries it can be repeated.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from carrypost.config import UNBOUNDED, Settings
from carrypost.config.rules import NONE, Fields, rule_of
from carrypost.config.settings import FIELDS as SETTINGS_FIELDS
from carrypost.emu.scenario import tables
from carrypost.emu.scenario.overrides import applied, toml
from carrypost.errors import CarrypostError, ConfigError, LocalError
from carrypost.files import refused

if TYPE_CHECKING:
    from carrypost.emu.traces.tracks import Movement

MICROSECONDS = 1_000_000
MODELS = {
    "random-waypoint": ("waypoint", "RandomWaypoint"),
    "community": ("community", "Community"),
    "streets": ("streets", "Streets"),
    "buses": ("buses", "Buses"),
    "gtfs": ("gtfs", "Gtfs"),
    "trace": ("traces", "Trace"),
}
"""Mobility models: module in `carrypost.emu.mobility`, class. Loaded when a scenario names them: they need numpy."""
_DELAY_S = 0.001
_TABLES = ("nodes", "contacts", "mobility", "radio", "settings", "workload", "faults")
_UNBOUNDED = (
    "message_bytes_max", "offers_open_max", "partials_max", "fragment_buffer_bytes_max", "descriptor_buffer_bytes_max",
    "seen_max", "seen_bytes_max", "unconfirmed_max", "unconfirmed_bytes_max", "link_frames_per_s", "link_bytes_per_s",
    "link_profiles_per_s", "link_waste_per_s", "waste_per_s",
)  # fmt: skip
_IDEAL = {
    "beacons": False,
    "coalesce_s": 0.0,
    "shares": False,
    "cache_messages_max": UNBOUNDED,
    "cache_bytes_max": UNBOUNDED,
    "window_bytes_max": UNBOUNDED,
    "limits": dict.fromkeys(_UNBOUNDED, UNBOUNDED) | {"neighbours_max": 65_536, "heard_max": 16_384},
}
"""What ideal mode takes away, unless the scenario sets it: waiting, shares, budgets, bounds."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]\]?")
_KEY = re.compile(r"""\s*["']?([\w.\-]+)["']?\s*=""")
_T = TypeVar("_T")


class Mobility(Protocol):
    """A model of movement."""

    def move(self, seed: int | str, duration_us: int) -> Movement:
        """Where everybody is, and when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One emulation, but for its seed."""

    name: str
    run: tables.RunTable
    nodes: tables.NodesTable
    contacts: tables.ContactsTable
    mobility: Mobility | None
    radio: tables.RadioTable
    links: tuple[tables.LinkTable, ...]
    settings: Settings
    workloads: tuple[tables.WorkloadTable, ...]
    faults: tables.FaultsTable
    events: tuple[tables.EventTable, ...]
    folder: Path
    """What the files that it names are relative to."""
    text: str
    """TOML, with what was overridden."""

    @property
    def duration_us(self) -> int:
        """The run is from 0 to this, without the end."""
        return round((self.run.duration_s or 0) * MICROSECONDS)

    @property
    def delay_s(self) -> float:
        """How long a datagram is under way, unless its link says otherwise."""
        usual_s = 0.0 if self.ideal else _DELAY_S
        return usual_s if self.radio.delay_s is None else self.radio.delay_s

    @property
    def ideal(self) -> bool:
        """Whether contacts are told and links cost nothing."""
        return self.run.mode == tables.IDEAL

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] | Mapping[str, object] = ()) -> Scenario:
        """The scenario of a file; overrides are texts KEY=VALUE, or values by key, as ``workload.0.lifetime_s``."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise LocalError(f"the scenario {path} cannot be read: it is not UTF-8 text") from None
        except OSError as error:
            raise refused(f"the scenario {path} cannot be read", error) from None
        return cls.parse(text, path.parent, overrides=overrides, file=path.name)

    @classmethod
    def parse(
        cls,
        text: str,
        folder: str | Path = ".",
        *,
        overrides: Sequence[str] | Mapping[str, object] = (),
        file: str = "the scenario",
    ) -> Scenario:
        """The scenario of a text; `folder` is what the files that it names are relative to."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file} is not TOML: {error}") from None
        keys = applied(content, overrides)
        return _Reader(content, text, file, keys).scenario(Path(folder), toml(content) if keys else text)

    def in_force(self) -> str:
        """Every key with the value that holds, defaults included, as TOML."""
        content = _written(self.run) | {
            "name": self.name,
            "nodes": _written(self.nodes),
            "contacts": _written(self.contacts),
            "mobility": {} if self.mobility is None else _written(self.mobility) | self._movement(),
            "radio": _written(self.radio) | {"delay_s": self.delay_s, "link": [_written(each) for each in self.links]},
            "settings": _written(self.settings) | {"limits": _written(self.settings.limits)},
            "workload": [_written(each) | {"topic": topic(each, index)} for index, each in enumerate(self.workloads)],
            "faults": _written(self.faults) | {"event": [_written(each) for each in self.events]},
        }
        return toml(content)

    def _movement(self) -> dict[str, str]:
        """Model and files as the scenario names them: a record must not depend on where things are on a machine."""
        named: dict[str, Any] = tomllib.loads(self.text).get("mobility", {})
        return {key: str(named[key]) for key in ("model", "file", "folder") if key in named}

    def path(self, file: str) -> Path:
        """Where a file is that the scenario names."""
        return self.folder / file


class _Reader:
    """Makes a scenario of what TOML says."""

    def __init__(self, content: dict[str, Any], text: str, file: str, overridden: Sequence[str]) -> None:
        self._content = content
        self._file = file
        self._overridden = set(overridden)
        self._lines = _lines_of(text)

    def scenario(self, folder: Path, text: str) -> Scenario:
        content = self._content
        top = {key: value for key, value in content.items() if key not in _TABLES}
        for key in top:
            self._known(key, [each.name for each in dataclasses.fields(tables.RunTable)] + list(_TABLES))
        run = self._table(tables.RunTable, top, "")
        if run.duration_s is None:
            raise ConfigError(f"{self._file}: duration_s is missing: a scenario says how long it lasts")
        radio, links = self._split("radio", "link")
        faults, events = self._split("faults", "event")
        made = Scenario(
            name=run.name or Path(self._file).stem,
            run=run,
            nodes=self._table(tables.NodesTable, self._of("nodes"), "nodes."),
            contacts=self._table(tables.ContactsTable, self._of("contacts"), "contacts."),
            mobility=self._mobility(folder),
            radio=self._table(tables.RadioTable, radio, "radio."),
            links=self._list(tables.LinkTable, links, "radio.link", ("a", "b")),
            settings=self._settings(ideal=run.mode == tables.IDEAL),
            workloads=self._list(tables.WorkloadTable, content.get("workload", []), "workload", ("kind",)),
            faults=self._table(tables.FaultsTable, faults, "faults."),
            events=self._list(tables.EventTable, events, "faults.event", ("t", "node", "kind")),
            folder=folder,
            text=text,
        )
        self._check(made)
        return made

    def _check(self, made: Scenario) -> None:
        """What no single table can tell."""
        if made.mobility is not None and made.contacts.file:
            raise ConfigError(f"{self._file}: contacts come from [contacts] or from [mobility], not from both")
        if made.nodes.file and made.nodes.count is not None:
            raise ConfigError(f"{self._file}: nodes come from nodes.file or from nodes.count, not from both")
        if made.radio.airtime == "shared" and made.radio.rate_bytes_per_s is None:
            raise ConfigError(f'{self._file}: radio.airtime = "shared" means nothing without radio.rate_bytes_per_s')
        for index, each in enumerate(made.workloads):
            if (each.kind == "script") != bool(each.file):
                said = "is a script and has no file" if each.kind == "script" else "has a file and is no script"
                raise ConfigError(f"{self._where(f'workload.{index}')}workload.{index} {said}")
            if each.size > (largest := made.settings.limits.message_bytes_max):
                said = f"workload.{index}.size must be at most settings.limits.message_bytes_max ({largest:,})"
                raise ConfigError(f"{self._where(f'workload.{index}.size')}{said}, not {each.size:,}")
        self._check_links(made)
        topics: dict[str, int] = {}
        for index, each in enumerate(made.workloads):
            name = topic(each, index)
            if (first := topics.setdefault(name, index)) != index:
                raise ConfigError(f"{self._file}: workload.{index} has the topic {name!r} of workload.{first}")

    def _check_links(self, made: Scenario) -> None:
        pairs: dict[frozenset[str], int] = {}
        for index, each in enumerate(made.links):
            where, pair = self._where(f"radio.link.{index}"), frozenset((each.a, each.b))
            if len(pair) == 1:
                raise ConfigError(f"{where}radio.link.{index} is a link of {each.a!r} to itself")
            if (first := pairs.setdefault(pair, index)) != index:
                raise ConfigError(f"{where}radio.link.{index} is about the pair of radio.link.{first}")

    def _mobility(self, folder: Path) -> Mobility | None:
        # Days and times of day may be written as TOML has them, too.
        table = {
            key: value.isoformat() if isinstance(value, date | time) else value
            for key, value in self._of("mobility").items()
        }
        if not table:
            return None
        model = table.pop("model", None)
        if model not in MODELS:
            names = ", ".join(f'"{name}"' for name in MODELS)
            raise ConfigError(f"{self._where('mobility.model')}mobility.model must be one of {names}, not {model!r}")
        module, name = MODELS[model]
        kind = getattr(importlib.import_module(f"carrypost.emu.mobility.{module}"), name)
        for key in table.keys() & {"file", "folder"}:
            if isinstance(table[key], str):
                table[key] = str(folder / table[key])
        made: Mobility = self._table(kind, table, "mobility.")
        return made

    def _settings(self, *, ideal: bool) -> Settings:
        usual = Settings.emulated(**_IDEAL) if ideal else Settings.emulated()
        changes = self._of("settings")
        for key, value in _flat(changes):
            self._checked(SETTINGS_FIELDS, {key: value}, "settings.", key)
        return self._made("settings", lambda: usual.replace(**changes))

    def _table(self, kind: type[_T], table: Mapping[str, Any], prefix: str) -> _T:
        fields = Fields({"": kind})
        kept: dict[str, Any] = {}
        for key, value in table.items():
            kept |= self._checked(fields, {key: value}, prefix, key)[""]
        return self._made(prefix.rstrip("."), lambda: kind(**kept))

    def _list(self, kind: type[_T], rows: object, name: str, needed: Sequence[str]) -> tuple[_T, ...]:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{self._where(name)}{name} is a list of tables, each written [[{name}]]")
        for index, row in enumerate(rows):
            for key in needed:
                if key not in row:
                    raise ConfigError(f"{self._where(f'{name}.{index}')}{name}.{index}.{key} is missing")
        return tuple(self._table(kind, row, f"{name}.{index}.") for index, row in enumerate(rows))

    def _split(self, name: str, inner: str) -> tuple[dict[str, Any], object]:
        """A table, and the list of tables inside it."""
        table = dict(self._of(name))
        return table, table.pop(inner, [])

    def _of(self, name: str) -> Mapping[str, Any]:
        table = self._content.get(name, {})
        if not isinstance(table, Mapping):
            raise ConfigError(f"{self._where(name)}{name} must be a table, not {table!r}")
        return table

    def _known(self, key: str, names: Sequence[str]) -> None:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
            raise ConfigError(f"{self._where(key)}{key} is not a key of a scenario{hint}")

    def _checked(self, fields: Fields, table: dict[str, Any], prefix: str, key: str) -> Mapping[str, Any]:
        return fields.check(table, f"{self._where(prefix + key)}{prefix}")

    def _made(self, table: str, make: Callable[[], _T]) -> _T:
        try:
            return make()
        except CarrypostError as error:
            raise ConfigError(f"{self._where(table)}{error}") from None

    def _where(self, key: str) -> str:
        if any(key == each or each.startswith(key + ".") or key.startswith(each + ".") for each in self._overridden):
            return f"{self._file} with --set: "
        line = self._lines.get(key)
        return f"{self._file}, line {line}: " if line else f"{self._file}: "


def topic(workload: tables.WorkloadTable, index: int) -> str:
    """The destination of a workload."""
    return workload.topic or f"workload-{index}"


def _written(value: object) -> dict[str, Any]:
    """The fields of a table as TOML has them."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(value):  # type: ignore[arg-type]  # only tables come here
        if rule_of(each) is not None:
            kept = getattr(value, each.name)
            if isinstance(kept, tuple):
                kept = [_written(inner) if dataclasses.is_dataclass(inner) else inner for inner in kept]
            found[each.name] = NONE if kept is None else kept
    return found


def _flat(table: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Keys of a table and of the tables in it."""
    found: list[tuple[str, object]] = []
    for key, value in table.items():
        inner = _flat(value) if isinstance(value, Mapping) else None
        found += [(f"{key}.{name}", each) for name, each in inner] if inner else [(key, value)]
    return found


def _lines_of(text: str) -> dict[str, int]:
    """The line on which a key of a TOML text stands; close enough for people who look for a mistake."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEADER.match(line):
            name = head[2].replace('"', "")
            if head[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
                found.setdefault(name, number)
                name = f"{name}.{counts[name]}"
            found.setdefault(name, number)
            prefix = name + "."
        elif key := _KEY.match(line):
            found.setdefault(prefix + key[1], number)
    return found
