"""Scenarios: one TOML file with nodes, contacts, publications, channels and faults.

A `Scenario` is a frozen value; everything in it was checked, but the files that it names were not read yet. The error
for an unknown key suggests the nearest known one, and the error for a wrong value gives the allowed ones; both name
file and line. `text` is the scenario as it is run, overrides included: a record that contains it can be repeated.

A `Channel` says which groups of nodes emit and consume its events, and with which modulator.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from carrypost.config import UNBOUNDED, Limits, Settings
from carrypost.config.document import Document, toml
from carrypost.config.rules import changed, nearest, rules_of, written
from carrypost.config.settings import FIELDS as SETTINGS_FIELDS
from carrypost.config.settings import ROUTING
from carrypost.emu import scenario_tables as tables
from carrypost.emu.scenario_tables import WorkloadTable
from carrypost.errors import ConfigError, LocalError
from carrypost.log.files import read_text
from carrypost.model.times import MICROSECONDS
from carrypost.overlay.modulators.modulator import Instance, Modulator

if TYPE_CHECKING:
    from carrypost.traces.contacts import DrawnContacts
    from carrypost.traces.tracks import Movement


CHANNEL = "channel"
_GROUPS = ("producers", "consumers")
_OWN = (*_GROUPS, "modulator", "params", "spread")
"""Keys of a workload that are for channels only."""


class Channel(NamedTuple):
    """One channel, with its clients by name."""

    name: str
    producers: frozenset[str]
    consumers: frozenset[str]
    modulator: Modulator | None
    spread_s: float = 0.0
    """Time over which the first events of producers are spread."""

    def delay_s(self, producer: str) -> float:
        """Return how much later than others a producer begins to emit events."""
        return self.spread_s * sorted(self.producers).index(producer) / len(self.producers) if self.spread_s else 0.0


def mistakes(workload: WorkloadTable, groups: Collection[str], limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield keys of a workload that are wrong, and why, as far as they are about channels."""
    if workload.kind != CHANNEL:
        yield from ((key, f'requires kind = "{CHANNEL}"') for key in _OWN if getattr(workload, key))
        return
    for key in _GROUPS:
        if not (named := getattr(workload, key)):
            yield key, "is missing: a channel must name the groups of its producers and consumers"
        elif named not in groups:
            yield key, f"must name a group of nodes, and there is no group {named!r}{nearest(named, groups)}"
    if workload.ordering != "none":
        yield (
            "ordering",
            "a channel has no ordering, since the events of each producer are always in order; leave it out",
        )
    if workload.params and not workload.modulator:
        yield "params", "requires a modulator"
    if workload.modulator:
        try:
            Instance(modulator_of(workload), limits, limits.modulator_state_bytes_max)
        except (LocalError, TypeError) as error:
            yield "modulator", str(error)


def modulator_of(workload: WorkloadTable) -> Modulator:
    """Return the modulator that a workload names; raises `LocalError` if it is not registered."""
    parameters: Any = workload.params
    return Modulator.named(workload.modulator, **parameters)


def channel_of(
    workload: WorkloadTable, place: str, members: Mapping[str, Sequence[str]], settings: Mapping[str, Settings]
) -> Channel:
    """Return the channel of a workload; `place` is its place in the scenario, `members` are those of groups.

    `settings` are those of nodes. Raises `ConfigError` for a client without the overlay.
    """
    for key in _GROUPS:
        for node in members[getattr(workload, key)]:
            if not settings[node].overlay.enabled:
                needs = "clients of channels need settings.overlay.enabled = true"
                raise ConfigError(f"{place}.{key}: {needs}, which the node {node!r} of the group lacks")
    producers, consumers = (frozenset(members[getattr(workload, key)]) for key in _GROUPS)
    modulator = modulator_of(workload) if workload.modulator else None
    return Channel(workload.topic, producers, consumers, modulator, workload.period_s if workload.spread else 0.0)


MODELS = {
    "random-waypoint": ("waypoint", "RandomWaypoint"),
    "community": ("community", "Community"),
    "streets": ("streets", "Streets"),
    "buses": ("buses", "Buses"),
    "gtfs": ("gtfs", "Gtfs"),
    "trace": ("traces", "Trace"),
}
"""Mobility models: module in `carrypost.mobility`, class. Loaded when a scenario names them: they need numpy."""
CONTACT_MODELS = {"campus": ("campus", "Campus")}
"""Models of contacts: the same."""
MOBILITY = "mobility.file"
"""The key whose file is named by its whole path once a scenario is read."""
_DELAY_S = 0.001
_TABLES = ("nodes", "contacts", "mobility", "radio", "settings", "population", "faults")
_UNBOUNDED = (
    "message_bytes_max", "offers_open_max", "offers_all_max", "partials_max", "fragment_buffer_bytes_max",
    "descriptor_buffer_bytes_max", "seen_max", "seen_bytes_max", "unconfirmed_max", "unconfirmed_bytes_max",
    "link_waste_per_s", "waste_per_s",
)  # fmt: skip
_IDEAL = {
    "beacons": False,
    "coalesce_s": 0.0,
    "acked_s": 0.0,
    "island_s_min": 0.0,
    "shares": False,
    "cache_messages_max": UNBOUNDED,
    "cache_bytes_max": UNBOUNDED,
    "window_bytes_max": UNBOUNDED,
    "limits": dict.fromkeys(_UNBOUNDED, UNBOUNDED) | {"neighbours_max": 65_536, "heard_max": 16_384},
}
"""Settings that ideal mode removes, unless the scenario sets them: waiting, shares, budgets, bounds."""


class Mobility(Protocol):
    """A model of movement."""

    def move(self, seed: int | str, duration_us: int) -> Movement:
        """Return the movement of every node."""


class ContactModel(Protocol):
    """A model of contacts."""

    def meet(self, seed: int | str, duration_us: int) -> DrawnContacts:
        """Return the contacts and presences of every node."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes with settings of their own."""

    table: tables.GroupTable
    changes: Mapping[str, object]
    """Settings that differ from those of the scenario, as they are checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One emulation, but for its seed."""

    name: str
    run: tables.RunTable
    nodes: tables.NodesTable
    groups: tuple[Group, ...]
    contacts: tables.ContactsTable
    contact_model: ContactModel | None
    mobility: Mobility | None
    radio: tables.RadioTable
    settings: Settings
    population: tables.PopulationTable
    faults: tables.FaultsTable
    folder: Path
    """Folder that the files that it names are relative to."""
    text: str
    """The scenario as TOML, with overrides."""

    @property
    def workloads(self) -> tuple[tables.WorkloadTable, ...]:
        """The publications."""
        return self.run.workload

    @property
    def duration_us(self) -> int:
        """The run is from 0 to this, without the end."""
        return round((self.run.duration_s or 0) * MICROSECONDS)

    @property
    def delay_s(self) -> float:
        """The time that a datagram is under way, unless its link says otherwise."""
        usual_s = 0.0 if self.ideal else _DELAY_S
        return usual_s if self.radio.delay_s is None else self.radio.delay_s

    @property
    def ideal(self) -> bool:
        """True if the engine reports contacts and links cost nothing."""
        return self.run.mode == tables.IDEAL

    @property
    def of_population(self) -> bool:
        """True if sets of messages pass over contacts, and no hosts run."""
        return self.run.mode == tables.POPULATION

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] | Mapping[str, object] = ()) -> Scenario:
        """Return the scenario of a file; overrides are KEY=VALUE, or values by key, as ``workload.0.lifetime_s``."""
        path = Path(path)
        text = read_text(path, f"the scenario {path} cannot be read")
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
        """Return the scenario of a text; `folder` is what the files that it names are relative to."""
        return _ScenarioReader(Document(text, file, overrides), file, Path(folder)).scenario()

    def in_force(self) -> str:
        """Return every key with the value that holds, defaults included, as TOML."""
        content = written(self.run) | {
            "name": self.name,
            "nodes": written(self.nodes),
            "contacts": written(self.contacts if self.contact_model is None else self.contact_model)
            | ({"model": self.contacts.model} if self.contact_model is not None else {}),
            "mobility": {} if self.mobility is None else written(self.mobility) | self._movement(),
            "radio": written(self.radio) | {"delay_s": self.delay_s},
            "settings": written(self.settings),
            **({"population": written(self.population)} if self.of_population else {}),
            "faults": written(self.faults),
        }
        return toml(content)

    def _movement(self) -> dict[str, str]:
        """Model and files as the scenario names them: a record must not depend on where things are on a machine."""
        named: dict[str, Any] = tomllib.loads(self.text).get("mobility", {})
        return {key: str(named[key]) for key in ("model", "file", "folder") if key in named}

    def path(self, file: str) -> Path:
        """Return the path of a file that the scenario names."""
        return self.folder / file

    def files(self) -> Iterator[tuple[str, str, Path]]:
        """Yield the keys that name files, what each file is, and its path."""
        named = [("nodes.file", self.nodes.file), ("contacts.file", self.contacts.file)]
        named += [(f"workload.{index}.file", each.file) for index, each in enumerate(self.workloads)]
        if self.of_population and self.population.delays != tables.ZERO:
            named.append(("population.delays", self.population.delays))
        yield from ((key, name, self.path(name)) for key, name in named if name)
        if movement := getattr(self.mobility, "file", ""):
            yield MOBILITY, movement, Path(movement)


class _ScenarioReader:
    """Makes a scenario of what TOML says."""

    def __init__(self, document: Document, file: str, folder: Path) -> None:
        self._document = document
        self._file = file
        self._folder = folder

    def scenario(self) -> Scenario:
        document = self._document
        top = {key: value for key, value in document.content.items() if key not in _TABLES}
        document.check_known("a scenario", top, [*rules_of(tables.RunTable), *_TABLES])
        run = document.value(tables.RunTable, "", top)
        if run.duration_s is None:
            raise document.error("", "duration_s is missing: set the length of the run in seconds")
        nodes = document.value(tables.NodesTable, "nodes")
        contacts, contact_model = self._contacts()
        made = Scenario(
            name=run.name or Path(self._file).stem,
            run=run,
            nodes=nodes,
            groups=self._groups(nodes),
            contacts=contacts,
            contact_model=contact_model,
            mobility=self._mobility(),
            radio=document.value(tables.RadioTable, "radio"),
            settings=self._settings(ideal=run.mode == tables.IDEAL),
            population=document.value(tables.PopulationTable, "population"),
            faults=document.value(tables.FaultsTable, "faults"),
            folder=self._folder,
            text=document.text,
        )
        self._check(made)
        return made

    def _check(self, made: Scenario) -> None:
        """Refuse tables that contradict each other."""
        error, reject = self._document.error, self._reject
        if made.mobility is not None and (made.contacts.file or made.contacts.model):
            raise error("contacts", "[contacts] and [mobility] exclude each other: leave out one of them")
        if made.contact_model is not None and (made.nodes.file or made.nodes.count is not None):
            text = "and [nodes] exclude each other: both give the nodes, and the times at which they are present"
            reject("contacts.model", f' = "{made.contacts.model}" {text}')
        if made.nodes.file and made.nodes.count is not None:
            raise error("nodes", "nodes.file and nodes.count exclude each other: leave out one of them")
        if made.contacts.presence == tables.FROM_CONTACTS:
            self._check_presence(made)
        if made.radio.airtime != "private" and made.radio.rate_bytes_per_s is None:
            reject("radio.airtime", f' = "{made.radio.airtime}" requires radio.rate_bytes_per_s')
        if made.radio.routes == "told" and not (made.ideal and made.settings.island):
            text = 'needs mode = "ideal" and settings.island = true: in other modes hosts find routes by themselves'
            reject("radio.routes", f' = "told" {text}')
        self._check_workloads(made)
        self._check_routing(made)
        self._check_links(made)
        if made.of_population:
            for key, why in _unmodelled(made, self._document.table("settings")):
                reject(key, f': {why}; mode = "{tables.FAITHFUL}" does, at the cost of a run of real hosts')
            if not made.population.delays:
                reject("population.delays", ' is missing: the file that `carrypost emu calibrate` writes, or "zero"')

    def _reject(self, key: str, rest: str) -> NoReturn:
        """Raise the error about a key; `rest` is what its message has behind the key."""
        raise self._document.error(key, key + rest)

    def _check_presence(self, made: Scenario) -> None:
        text = f' = "{made.contacts.presence}"'
        if not made.contacts.file:
            self._reject("contacts.presence", f"{text} requires contacts.file")
        if made.nodes.file or made.nodes.count is not None:
            why = "and [nodes] exclude each other: both give the times at which nodes are present"
            self._reject("contacts.presence", f"{text} {why}")

    def _check_workloads(self, made: Scenario) -> None:
        reject, topics = self._reject, dict[str, int]()
        for index, each in enumerate(made.workloads):
            name = f"workload.{index}"
            if (each.kind == "script") != bool(each.file):
                file, kind = "a file", 'kind = "script"'
                has, lacks = (file, kind) if each.file else (kind, file)
                reject(name, f" has {has}, which requires {lacks}")
            if each.kind == "addressed":
                self._check_addressed(name, each)
            if each.queue != "none":
                self._check_queue(name, each)
            for key, why in mistakes(each, [group.table.name for group in made.groups], made.settings.limits):
                reject(f"{name}.{key}", f": {why}")
            if each.sizes[1] > (largest := made.settings.limits.message_bytes_max):
                text = f"must be at most settings.limits.message_bytes_max ({largest:,}), not {each.sizes[1]:,}"
                reject(f"{name}.size", f" {text}")
            if each.kind not in {"addressed", tables.RANDOM} and not isinstance(each.size, int):
                kinds = f'kind = "addressed" and "{tables.RANDOM}"'
                reject(f"{name}.size", f" must be a number: only {kinds} take a range")
            if (first := topics.setdefault(each.topic, index)) != index:
                reject(name, f" has the topic {each.topic!r} of workload.{first}")

    def _check_queue(self, name: str, workload: tables.WorkloadTable) -> None:
        queue = f'queue = "{workload.queue}"'
        if workload.kind != tables.RANDOM:
            self._reject(f"{name}.queue", f' requires kind = "{tables.RANDOM}", and kind is "{workload.kind}"')
        if workload.ordering != "none":
            text = f'{queue} and ordering = "{workload.ordering}" exclude each other'
            self._reject(f"{name}.ordering", f": {text}: only topics have an order; leave out one of them")
        if "recipients" in self._given(name):
            text = f"{queue} and recipients exclude each other"
            self._reject(f"{name}.recipients", f": {text}: a queue has one consumer; leave out recipients")

    def _check_addressed(self, name: str, workload: tables.WorkloadTable) -> None:
        reject, many = self._reject, workload.recipients
        if workload.ordering != "none":
            text = "messages with recipients cannot be ordered, since all other hosts would wait for them in vain"
            reject(f"{name}.ordering", f": {text}; leave it out")
        for key, span in (("size", workload.sizes), ("every_s", workload.intervals_s or (0, 0))):
            if span[0] > span[1]:
                reject(f"{name}.{key}", f" must have the lowest number first, not {list(span)}")
        if workload.every_s is not None:
            other = next((key for key in ("messages", "within_s") if key in self._given(name)), None)
            if other is not None:
                text = "exclude each other, because every_s publishes until the end of the run: leave out one of them"
                raise self._document.error(f"{name}.{other}", f"{name}.every_s and {name}.{other} {text}")
        if many > 1 and many != int(many):
            text = "must be a whole number of hosts or, below 1, a share of them"
            reject(f"{name}.recipients", f" {text}, not {many:g}")

    def _given(self, name: str) -> Mapping[str, object]:
        """Return the keys of a workload that the file has."""
        given: Mapping[str, object] = self._document.content["workload"][int(name.rsplit(".", 1)[-1])]
        return given

    def _check_routing(self, made: Scenario) -> None:
        """Refuse what routing strategies cannot do."""
        chosen = [made.settings.strategy, *(str(each.changes.get("strategy", "")) for each in made.groups)]
        strategy = next((each for each in chosen if each in ROUTING), None)
        for index, each in enumerate(made.workloads if strategy is not None else ()):
            name = f"workload.{index}"
            if each.ordering != "none":
                text = f'"{strategy}" does not bring the predecessors that ordered messages wait for'
                self._reject(f"{name}.ordering", f': {text}; leave it out, or use strategy = "exchange"')
            if each.kind in {"broadcast", tables.RANDOM} and tables.DIRECT in chosen:
                text = f'"{tables.DIRECT}" takes messages to their recipients, and those of {name} have none'
                self._reject(f"{name}.kind", f': {text}; use kind = "addressed", or another strategy')

    def _check_links(self, made: Scenario) -> None:
        pairs = dict[frozenset[str], int]()
        for index, link in enumerate(made.radio.link):
            name, pair = f"radio.link.{index}", frozenset((link.a, link.b))
            if len(pair) == 1:
                self._reject(name, f" is a link of {link.a!r} to itself")
            if (first := pairs.setdefault(pair, index)) != index:
                self._reject(name, f" is about the pair of radio.link.{first}")

    def _groups(self, nodes: tables.NodesTable) -> tuple[Group, ...]:
        document, found = self._document, dict[str, Group]()
        for index, table in enumerate(nodes.group):
            name = f"nodes.group.{index}"
            if table.name in found:
                self._reject(name, f" has the name {table.name!r} of another group")
            if bool(table.names) == (table.count is not None):
                self._reject(name, " must have either names or a count")
            if table.of and (table.of not in found or table.names):
                self._reject(f"{name}.of", f" must name an earlier group, and requires a count, not {table.of!r}")
            found[table.name] = Group(table, document.fields(SETTINGS_FIELDS, f"{name}.settings", table.settings))
        return tuple(found.values())

    def _mobility(self) -> Mobility | None:
        # Days and times of day may be written as TOML has them, too.
        table = {
            key: value.isoformat() if isinstance(value, date | time) else value
            for key, value in self._document.table("mobility").items()
        }
        if not table:
            return None
        kind = self._model("mobility", table.pop("model", None), MODELS)
        for key in table.keys() & {"file", "folder"}:
            if isinstance(table[key], str):
                table[key] = str(self._folder / table[key])
        made: Mobility = self._document.value(kind, "mobility", table)
        return made

    def _contacts(self) -> tuple[tables.ContactsTable, ContactModel | None]:
        table = dict(self._document.table("contacts"))
        if (model := table.pop("model", "")) == "":
            return self._document.value(tables.ContactsTable, "contacts"), None
        kind = self._model("contacts", model, CONTACT_MODELS)
        if "file" in table:
            self._reject("contacts.file", " and contacts.model exclude each other: leave out one of them")
        made: ContactModel = self._document.value(kind, "contacts", table)
        return tables.ContactsTable(model=model), made

    def _model(self, table: str, model: object, models: Mapping[str, tuple[str, str]]) -> Any:  # noqa: ANN401 - a class
        """Return the class of a model; it is loaded now."""
        found = models.get(model) if isinstance(model, str) else None
        if found is None:
            names = ", ".join(f'"{name}"' for name in models)
            one = "one of " if len(models) > 1 else ""
            self._reject(f"{table}.model", f" must be {one}{names}, not {model!r}{nearest(str(model), models)}")
        module, name = found
        return getattr(importlib.import_module(f"carrypost.mobility.{module}"), name)

    def _settings(self, *, ideal: bool) -> Settings:
        usual = Settings.emulated(**_IDEAL) if ideal else Settings.emulated()
        changes = self._document.fields(SETTINGS_FIELDS, "settings")
        return self._document.build("settings", lambda: changed(usual, changes))


# --- population mode: what sets of messages cannot express -----------------------------------------------------------
# Population mode has two delays and nothing else: it knows no bytes, so nothing that depends on a
# rate, on the room in a cache or on the state of a host. Settings that only change how soon hosts
# find each other, and how soon they pass a message on, are in the calibration. All others are
# refused, new ones included.

_CALIBRATED = frozenset({
    "announce_s_min", "announce_s_max", "coalesce_s", "compress", "mtu_bytes", "offer_s_min", "push_bytes_max",
    "security",
})  # fmt: skip
"""Settings whose effect is in the calibrated delays."""
_ABSENCES = ("away", "suspend")
"""Faults that are modelled: the node is absent, and keeps its messages."""
_FAULTS = (
    "crash_per_h", "disk_full_per_h", "clock_skew_s", "clock_drift_ppm", "clock_step_per_h", "corrupt", "truncate",
)  # fmt: skip


def _unmodelled(made: Scenario, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that population mode refuses, and why; `settings` are those that the scenario sets."""
    if made.groups:
        yield "nodes.group", "population mode does not model nodes with settings of their own"
    yield from _of_radio(made)
    for name, value in settings.items():
        for key in [f"{name}.{each}" for each in value] if isinstance(value, Mapping) else [name]:
            if key not in _CALIBRATED:
                yield f"settings.{key}", "population mode does not model this setting"
    for index, workload in enumerate(made.workloads):
        if workload.ordering != "none":
            yield f"workload.{index}.ordering", "population mode does not model the order of deliveries"
        if workload.kind == "addressed":
            yield f"workload.{index}.kind", "population mode does not model messages for some of the nodes"
        if workload.queue != "none":
            yield f"workload.{index}.queue", "population mode does not model queues"
        if workload.kind == "channel":
            yield f"workload.{index}.kind", "population mode does not model channels"
    faults = [f"faults.{name}" for name in _FAULTS if getattr(made.faults, name)]
    faults += [
        f"faults.event.{index}.kind" for index, each in enumerate(made.faults.event) if each.kind not in _ABSENCES
    ]
    yield from ((key, "population mode models no failure but absence") for key in faults)


def _of_radio(made: Scenario) -> Iterator[tuple[str, str]]:
    if made.radio.rate_bytes_per_s is not None:
        yield "radio.rate_bytes_per_s", "population mode does not model limits of rate"
    if made.radio.asymmetric:
        yield "radio.asymmetric", "population mode does not model contacts that work one way"
    for index in range(len(made.radio.link)):
        yield f"radio.link.{index}", "population mode does not model links that differ from the others"
