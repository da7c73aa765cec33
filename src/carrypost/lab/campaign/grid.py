"""Campaigns as ``campaign.toml`` says, scenarios × settings × seeds, and the files that scenarios name.

A file is known by the hash of its bytes. It travels as a broadcast, and is unpacked once for all processes of an
executor, into a folder of this user alone inside the folder that Spark gives to that executor and removes with it. A
file is unpacked completely or not at all. A scenario finds its files by `Unpacked`, wherever they were and whatever
their names: beside it, above it or at the root.

::

    scenarios = ["bus.toml", "walkers.toml"]     # relative to this file
    seeds = [1, 2, 3]                            # whole numbers or texts; or {first = 1, last = 30}

    [[settings]]                                 # none: one called "default", which changes nothing
    name = "20min"
    set = {"workload.0.lifetime_s" = 1200}       # keys of the scenarios
    scenarios = ["bus.toml"]                     # left out: all of them

    [sweep]                                      # each of these values, in every combination
    "workload.0.lifetime_s" = [300, 600, 1200]
    "settings.cache_messages_max" = [25, 50]

Everything is checked before anything runs: every scenario with all settings, every file that one of them names; those
of nodes, contacts and scripts are read, each once. A run has a name (scenario/settings/seed) and a fingerprint, which
changes when its result might.

In a sweep, each choice of settings is combined with all values; the last key changes fastest. The combination is named
by the last part of each key and its value, as in ``lifetime_s=300, cache_messages_max=25``, behind the name of the
settings if the campaign has any.
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import carrypost
from carrypost.config.document import Document
from carrypost.config.rules import nearest
from carrypost.emu.arguments import seed_of
from carrypost.emu.engine.applications import read_script
from carrypost.emu.population.delays import Delays
from carrypost.emu.scenario import MOBILITY, Scenario
from carrypost.errors import ConfigError, FileError, LocalError
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.log.files import digest, read_text, refused, refusing
from carrypost.mobility import names as counted
from carrypost.traces.contact_tables import parquet_files
from carrypost.traces.contacts import read_meetings, read_presences

Fetch = Callable[[str], bytes]
"""The bytes that have this hash."""
_FOLDER = "carrypost"


class Part(NamedTuple):
    """One file."""

    path: str
    digest: str


class Named(NamedTuple):
    """The files that a key of a scenario names: a file, or a folder of files."""

    key: str
    name: str
    """Name of the file in the scenario."""
    path: str
    """Path on the driver's machine."""
    parts: tuple[Part, ...]
    folder: bool

    @property
    def digest(self) -> str:
        """Hash of the bytes of a file; of the names and bytes of a folder's files."""
        if not self.folder:
            return self.parts[0].digest
        listing = "".join(f"{self.inside(each)}\0{each.digest}\n" for each in self.parts)
        return hashlib.sha256(listing.encode()).hexdigest()

    def inside(self, part: Part) -> str:
        """Return the name of a file in its folder."""
        return Path(part.path).relative_to(self.path).as_posix()


def named(scenario: Scenario, digests: dict[Path, str]) -> tuple[Named, ...]:
    """Return the files that a scenario names, read once to hash them; `digests` remembers between scenarios."""
    return tuple(_named_files(key, name, path, digests) for key, name, path in scenario.files())


def _named_files(key: str, name: str, path: Path, digests: dict[Path, str]) -> Named:
    names = f"{key} names {path}"
    with refusing(f"{names}, which cannot be read", missing=f"{names}, and there is no such file"):
        folder = path.is_dir()
        files = _files_in(path) if folder else [path]
        for each in files:
            if each not in digests:
                digests[each] = digest(each)
    return Named(key, name, str(path), tuple(Part(str(each), digests[each]) for each in files), folder)


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, and of tables in it if it is one that `lab ingest` wrote."""
    found = [each for each in folder.iterdir() if each.is_file()]
    if not any(each.suffix == ".parquet" for each in found):
        found += [each for table in (POSITIONS, CONTACTS) for each in parquet_files(folder, table.name)]
    return sorted(found)


def contents(files: Sequence[Named]) -> Iterator[tuple[str, bytes]]:
    """Hash and bytes of every file, each content once."""
    seen: set[str] = set()
    for part in (part for each in files for part in each.parts):
        if part.digest in seen:
            continue
        seen.add(part.digest)
        with refusing(f"{part.path} cannot be read"):
            content = Path(part.path).read_bytes()
        if hashlib.sha256(content).hexdigest() != part.digest:
            raise LocalError(f"{part.path} changed while the campaign was starting; try again when it is complete")
        yield part.digest, content


# --- on an executor ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked(Scenario):
    """A scenario whose files are somewhere else; its record is the same."""

    places: Mapping[str, Path]
    """By what the scenario calls them."""

    def path(self, file: str) -> Path:
        """Return the path of a file that the scenario names."""
        return self.places[file]


def unpacked(scenario: Scenario, files: Sequence[Named], fetch: Fetch) -> Unpacked:
    """Return the same scenario, with its files unpacked on this machine."""
    root = executor_folder()
    places = {each.name: _unpack(each, root, fetch) for each in files}
    fields: dict[str, Any] = {each.name: getattr(scenario, each.name) for each in dataclasses.fields(scenario)}
    moved = next((each for each in files if each.key == MOBILITY), None)
    if moved is not None:
        fields["mobility"] = dataclasses.replace(fields["mobility"], file=str(places[moved.name]))
    return Unpacked(**fields, places=places)


def executor_folder() -> Path:
    """Return a folder of this executor, for all its processes, which ends with it; only this user has access.

    Where Spark gives none, or another user made it, it is a new one of this process.
    """
    if given := os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]:
        folder = Path(given) / _FOLDER
        with suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
            if _is_ours(folder):
                return folder
    with refusing("there is no folder for the files of scenarios"):
        return _own_folder(os.getpid())


def _is_ours(folder: Path) -> bool:
    """Return True if its contents are this user's: a folder that others can write to is not trusted."""
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    )


@cache
def _own_folder(pid: int) -> Path:
    """Return the folder of a process: a forked one makes its own, and removes no other."""
    made = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}-"))

    def end() -> None:
        if os.getpid() == pid:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(end)
    return made


def _unpack(each: Named, root: Path, fetch: Fetch) -> Path:
    name = Path(each.path).name
    name = name if name.strip(".") else "files"
    home = root / hashlib.sha256(f"{name}\0{each.digest}".encode()).hexdigest()
    target = home / name
    if home.is_dir():
        return target
    root.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=root, prefix=".partial-"))
    try:
        inside = partial / target.name
        if each.folder:
            inside.mkdir()
        for part in each.parts:
            file = inside / each.inside(part) if each.folder else inside
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(fetch(part.digest))
        _move(partial, home)
    except OSError as error:
        raise refused(f"{each.path} cannot be unpacked in {root}", error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _move(partial: Path, home: Path) -> None:
    try:
        partial.rename(home)
    except OSError:
        if not home.is_dir():  # Otherwise another process of this executor was quicker.
            raise


SWEEP = "sweep"


class Combination(NamedTuple):
    """A value of each swept key."""

    name: str
    overrides: dict[str, object]


def combinations(document: Document, flat: Mapping[str, object]) -> Sequence[Combination]:
    """Return the combinations of the values of `[sweep]`; `flat`: its keys with dots."""
    named = _named(flat)
    lists: dict[str, list[Any]] = {}
    for key, values in flat.items():
        if not isinstance(values, list) or not values:
            wrong = f"{key} must be a list of one or more values, such as [300, 600, 1200], not {values!r}"
            raise document.error(f"{SWEEP}.{key}", wrong)
        shown = Counter(map(value_text, values))
        if twice := next((text for text, count in shown.items() if count > 1), None):
            raise document.error(f"{SWEEP}.{key}", f"{key} has the value {twice} twice, or two that have one name")
        lists[key] = values
    every = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    return [
        Combination(", ".join(f"{named[key]}={value_text(value)}" for key, value in each.items()), each)
        for each in every
    ]


def _named(keys: Mapping[str, object]) -> dict[str, str]:
    """Return the last part of each key; the whole key where two have the same."""
    last = {key: key.rpartition(".")[2] for key in keys}
    counts = Counter(last.values())
    return {key: name if counts[name] == 1 else key for key, name in last.items()}


def value_text(value: object) -> str:
    """Return a value as names of runs and the table of runs have it: texts as they are, but for slashes."""
    if isinstance(value, str):
        return value.replace("/", "-")
    if isinstance(value, bool | int | float | list):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


RUNS_MAX = 1_000_000
DEFAULT = "default"
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")
_SLUG_MAX = 64
_DIGEST = 24
_BY_SET = re.compile(r"--set (\S+?):")


@dataclass(frozen=True, slots=True)
class CampaignRun:
    """One run of a campaign, with everything that it needs but the bytes of files."""

    name: str
    """scenario/settings/seed, as in the column `run`."""
    scenario: str
    settings: str
    seed: int | str
    file: str
    """Name of the scenario's file."""
    text: str
    """Contents of the file."""
    overrides: Mapping[str, object]
    files: tuple[Named, ...]
    fingerprint: str
    cut: bool = False
    """True if it is done window by window, each of them a task."""

    @property
    def set(self) -> dict[str, str]:
        """The keys that its settings and the sweep change, with their values as texts."""
        return {key: value_text(value) for key, value in self.overrides.items()}

    @property
    def stem(self) -> str:
        """Name of its files: for any file system, and different for any two runs."""
        slug = _UNSAFE.sub("_", self.name.replace("/", "-"))[:_SLUG_MAX].strip("._-")
        return f"{slug or 'run'}-{hashlib.sha256(self.name.encode()).hexdigest()[:_DIGEST]}"


class Setting(NamedTuple):
    """A choice of keys."""

    name: str
    overrides: dict[str, object]
    place: str
    """Name of its table in the file."""
    scenarios: tuple[str, ...] = ()
    """Names of the scenarios that the table applies to; empty: every scenario."""

    def is_for(self, scenario: str) -> bool:
        """Return True if runs of a scenario have it."""
        return not self.scenarios or scenario in self.scenarios


@dataclass(frozen=True, slots=True)
class Grid:
    """A campaign: its runs in order."""

    path: Path
    scenarios: tuple[str, ...]
    settings: tuple[Setting, ...]
    seeds: tuple[int | str, ...]
    runs: tuple[CampaignRun, ...]


def load(path: str | Path) -> Grid:
    """Return the campaign of a file, checked with all that it names."""
    path = Path(path)
    text = read_text(path, f"the campaign {path} cannot be read")
    return _CampaignReader(path, Document(text, path.name)).grid()


class _CampaignReader:
    """Makes a campaign of what TOML says."""

    def __init__(self, path: Path, document: Document) -> None:
        self._path = path
        self._document = document
        self._error = document.error
        self._read = _Read()

    def grid(self) -> Grid:
        self._document.check_known("a campaign", self._document.content, ("scenarios", "seeds", "settings", SWEEP))
        scenarios = self._scenarios()
        settings = self._swept(self._settings(scenarios))
        seeds = self._seeds()
        if (count := len(scenarios) * len(settings) * len(seeds)) > RUNS_MAX:
            raise self._error("", f"the campaign has {count:,} runs; the maximum is {RUNS_MAX:,}")
        runs = tuple(self._runs(scenarios, settings, seeds))
        self._check_names(runs)
        return Grid(self._path, tuple(scenarios), settings, seeds, runs)

    # --- what the file says

    def _scenarios(self) -> list[str]:
        found = self._document.content.get("scenarios")
        if not isinstance(found, list) or not found or not all(isinstance(each, str) and each for each in found):
            raise self._error(
                "scenarios", "scenarios must be a list of one or more scenario files, relative to this file"
            )
        if twice := _twice(found):
            raise self._error("scenarios", f"scenarios names {twice} twice")
        return found

    def _seeds(self) -> tuple[int | str, ...]:
        found = self._document.content.get("seeds")
        if isinstance(found, dict):
            found = self._span(found)
        if not isinstance(found, list | range) or not found:
            wrong = "seeds must be a list of one or more whole numbers or texts, or {first = 1, last = 9}"
            raise self._error("seeds", wrong)
        if isinstance(found, range) and len(found) > RUNS_MAX:
            raise self._error("seeds", f"there are {len(found):,} seeds; the maximum is {RUNS_MAX:,} runs")
        seeds = tuple(map(self._seed, found))
        if (twice := _twice(seeds)) is not None:
            raise self._error("seeds", f"seeds has {twice!r} twice")
        return seeds

    def _seed(self, seed: object) -> int | str:
        if isinstance(seed, bool) or not isinstance(seed, int | str):
            raise self._error("seeds", f"a seed must be a whole number or text, not {seed!r}")
        if isinstance(seed, int):
            return seed
        self._check_name("a seed", seed, "seeds")
        return seed_of(seed)

    def _span(self, table: dict[str, Any]) -> range:
        self._document.check_known("seeds", table, ("first", "last"), "seeds")
        first: Any = table.get("first", 1)
        last: Any = table.get("last")
        if not (_is_whole(first) and _is_whole(last)) or first > last:
            raise self._error("seeds", "first and last of seeds must be whole numbers: {first = 1, last = 30}")
        return range(first, last + 1)

    def _settings(self, scenarios: Sequence[str]) -> tuple[Setting, ...]:
        found = self._document.rows("settings")
        if not found and "settings" in self._document.content:
            raise self._error("settings", f"settings must not be empty; leave it out to get one called {DEFAULT}")
        made = tuple(self._setting(f"settings.{index}", each, scenarios) for index, each in enumerate(found))
        if twice := _twice([each.name for each in made]):
            place = next(each.place for each in reversed(made) if each.name == twice)
            raise self._error(place, f'two settings are called "{twice}"')
        unused = [name for name in scenarios if made and not any(each.is_for(name) for each in made)]
        if unused:
            raise self._error(
                self._place(unused[0]), f"no settings apply to the scenario {unused[0]}: name it in one of them"
            )
        return made or (Setting(DEFAULT, {}, ""),)

    def _setting(self, place: str, table: dict[str, Any], scenarios: Sequence[str]) -> Setting:
        self._document.check_known("settings", table, ("name", "set", "scenarios"), place)
        name = table.get("name")
        if not isinstance(name, str):
            wrong = "settings have no name" if name is None else f"the name of settings must be text, not {name!r}"
            raise self._error(place, wrong)
        self._check_name("the name of settings", name, place)
        changes = table.get("set", {})
        if not isinstance(changes, dict):
            wrong = (
                f'set must be a table of keys of the scenario, such as {{"workload.0.lifetime_s" = 600}}, not '
                f"{changes!r}"
            )
            raise self._error(f"{place}.set", wrong)
        chosen = table.get("scenarios", [])
        if not isinstance(chosen, list) or (strange := [each for each in chosen if each not in scenarios]):
            hint = "" if not isinstance(chosen, list) else nearest(str(strange[0]), scenarios)
            wrong = f"scenarios must be a list of scenarios of the campaign, not {chosen!r}{hint}"
            raise self._error(f"{place}.scenarios", wrong)
        return Setting(name, dict(_flat(changes)), place, tuple(chosen))

    def _swept(self, settings: Sequence[Setting]) -> tuple[Setting, ...]:
        """Return each choice of settings with every combination of swept values."""
        found = self._document.content.get(SWEEP, {})
        if not isinstance(found, dict):
            wrong = 'sweep must be a table of keys and lists of values: "workload.0.lifetime_s" = [300, 600]'
            raise self._error(SWEEP, wrong)
        if not found:
            return tuple(settings)
        flat = dict(_flat(found))
        for setting in settings:
            if both := next((key for key in flat if key in setting.overrides), ""):
                raise self._error(f"{SWEEP}.{both}", f'{both} is swept, and set by the settings "{setting.name}"')
        if len(settings) * math.prod(len(each) for each in flat.values() if isinstance(each, list)) > RUNS_MAX:
            raise self._error(SWEEP, f"the sweep has more than {RUNS_MAX:,} combinations")
        return tuple(
            Setting(
                ", ".join(filter(None, (setting.name if setting.place else "", each.name))),
                setting.overrides | each.overrides,
                setting.place or SWEEP,
                setting.scenarios,
            )
            for setting in settings
            for each in combinations(self._document, flat)
        )

    # --- what it means

    def _runs(
        self, scenarios: Sequence[str], settings: Sequence[Setting], seeds: Sequence[int | str]
    ) -> Iterator[CampaignRun]:
        digests: dict[Path, str] = {}
        for name in scenarios:
            text = self._text(name)
            for setting in [each for each in settings if each.is_for(name)]:
                scenario, files = self._scenario(name, text, setting, digests)
                # Also what holds by default: it may change with the code, and the version not.
                known = [carrypost.__version__, scenario.text, scenario.in_force()]
                known += [f"{each.key} {each.name} {each.digest}" for each in files]
                for seed in seeds:
                    print_of = json.dumps([*known, str(seed)])
                    yield CampaignRun(
                        name=f"{scenario.name}/{setting.name}/{seed}",
                        scenario=scenario.name,
                        settings=setting.name,
                        seed=seed,
                        file=Path(name).name,
                        text=text,
                        overrides=setting.overrides,
                        files=files,
                        fingerprint=hashlib.sha256(print_of.encode()).hexdigest(),
                        cut=scenario.of_population and scenario.population.window_s is not None,
                    )

    def _text(self, name: str) -> str:
        path = self._path.parent / name
        wrong = f"scenarios: the scenario {path} cannot be read"
        return read_text(path, str(self._error(self._place(name), wrong)), ConfigError)

    def _scenario(
        self, name: str, text: str, setting: Setting, digests: dict[Path, str]
    ) -> tuple[Scenario, tuple[Named, ...]]:
        path = self._path.parent / name
        try:
            made = Scenario.parse(text, path.parent, overrides=setting.overrides, file=path.name)
            files = named(made, digests)
            self._read.check(made)
        except (LocalError, FileError) as error:
            wrong = _BY_SET.sub(r"\1:", str(error)).replace(" with --set:", " with these settings:")
            if not wrong.startswith(path.name):
                wrong = f"{path.name}: {wrong}"
            where = f'settings "{setting.name}": ' if setting.overrides else ""
            mistake = self._error(setting.place if where else self._place(name), where + wrong)
            # What is damaged is no mistake, though the place that names it helps as much.
            raise (FileError(str(mistake)) if isinstance(error, FileError) else mistake) from None
        self._check_name(f"the name of the scenario {name}", made.name, self._place(name))
        return made, files

    def _check_names(self, runs: Sequence[CampaignRun]) -> None:
        if (twice := _twice([each.name for each in runs])) is not None:
            wrong = f"two scenarios have runs named {twice}: give one of them another `name`"
            raise self._error("scenarios", wrong)
        if (twice := _twice([each.stem.casefold() for each in runs])) is not None:
            first, second, *_ = (each.name for each in runs if each.stem.casefold() == twice)
            wrong = f"the files of {first} and {second} would both be named {twice}: rename one"
            raise self._error("", wrong)

    # --- mistakes

    def _check_name(self, what: str, name: str, place: str | int) -> None:
        if not name.strip() or "/" in name or not name.isprintable():
            raise self._error(place, f"{what} must be printable text without /, not {name!r}")

    def _place(self, scenario: str) -> str | int:
        """Return the line that names a scenario: their list may have many."""
        return self._document.line_with(scenario) or "scenarios"


class _Read:
    """Files that were read to find mistakes, by their kind; for each the nodes that it names are kept."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, Path], frozenset[str]] = {}

    def check(self, scenario: Scenario) -> None:
        """Read the files that the scenario names and that were not read yet."""
        known: frozenset[str] | None = None
        if scenario.nodes.file:
            path = scenario.path(scenario.nodes.file)
            known = self._once("nodes", path, lambda: [each.node for each in read_presences(path)])
        elif scenario.nodes.count is not None:
            known = frozenset(counted(scenario.nodes.count))
        if scenario.contacts.file:
            self._contacts(scenario, known)
        for each in scenario.workloads:
            if each.file:
                self._script(scenario.path(each.file))
        if scenario.of_population:
            Delays.of(scenario)

    def _contacts(self, scenario: Scenario, known: frozenset[str] | None) -> None:
        path, overlaps = scenario.path(scenario.contacts.file), scenario.contacts.overlaps
        kind = f"contacts {overlaps}"
        met = self._once(kind, path, lambda: read_meetings(path, overlaps=overlaps).nodes)
        if known is not None and not met <= known:
            read_meetings(path, known, overlaps=overlaps)  # Tells the line.

    def _script(self, path: Path) -> None:
        self._once("script", path, lambda: [each.node for each in read_script(path)])

    def _once(self, kind: str, path: Path, names: Callable[[], Iterable[str]]) -> frozenset[str]:
        if (found := self._names.get((kind, path))) is None:
            found = self._names[kind, path] = frozenset(names())
        return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield keys with dots; a user that left out the quotes gave tables in tables, and means the same."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _twice(values: Sequence[Any]) -> Any:  # noqa: ANN401 - one of those that came in, or None
    seen: set[Any] = set()
    for each in values:
        if each in seen:
            return each
        seen.add(each)
    return None
