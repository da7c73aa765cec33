"""The documents are true: examples run, links have targets, tables and diagrams are those of the code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from fnmatch import fnmatch
from pathlib import Path
from typing import get_args

import pytest
from tests.support.loopback import apart
from tests.support.stomp_clients import node_process
from tools.copy_moves import COPY_TABLE
from tools.document_programs import BLOCK, DOCUMENTS, programs

import carrypost
from carrypost import naming
from carrypost.config import Limits, Settings
from carrypost.config.rules import written
from carrypost.emu.scenario import CONTACT_MODELS, MODELS, Scenario
from carrypost.gossip.holdings.cache import DELIVERIES, ORDER, PUBLISHING, Cache, state_of
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.wire.checks import Refusal
from carrypost.gossip.wire.pieces import full_mask
from carrypost.host import Host
from carrypost.java_names import is_java_name
from carrypost.log import journal
from carrypost.log.events import Event, Reason
from carrypost.log.record import SCHEMA, Kind
from carrypost.model.descriptor import PIECE_BYTES, Descriptor, PayloadCodec
from tools import check

ROOT = Path(__file__).resolve().parents[2]
STOMP_PORT = "61613"


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def prose_of(path: Path) -> str:
    return BLOCK.sub("", path.read_text(encoding="utf-8"))


# --- examples ------------------------------------------------------------------------------------------------


EXAMPLES = [(each.place, each.source, each.output) for each in programs()]


@pytest.fixture(scope="module")
def stomp_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A home folder, with a node that serves STOMP clients and its folder where users have it; and its port."""
    home = tmp_path_factory.mktemp("home")
    with node_process(home) as node:
        yield home, node.port


@pytest.mark.parametrize(("where", "source", "output"), EXAMPLES, ids=[where for where, _, _ in EXAMPLES])
def test_an_example_runs_and_prints_what_stands_below_it(
    where: str, source: str, output: str | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (
        "carrypost.sync" in source
    ):  # Its node is that of the user, and speaks to the network, unless it is told otherwise.
        given = {"NODE_DATA": request.getfixturevalue("tmp_path")}
        given |= {f"UDP_{name.upper()}": json.dumps(value) for name, value in apart().items()}
        for name, value in given.items():
            monkeypatch.setenv(f"CARRYPOST_{name}", str(value))
    if STOMP_PORT in source:
        home, port = request.getfixturevalue("stomp_node")
        monkeypatch.setenv("HOME", str(home))
        source = source.replace(STOMP_PORT, str(port))
    if "carrypost.lab.spark.session" in source:
        request.getfixturevalue("spark")  # Spark starts once for all tests.
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(source, where, "exec", dont_inherit=True), {"__name__": "example"})  # noqa: S102 - our own documents
    assert printed.getvalue() == (output or "")


API = [
    *(carrypost.ConnectionFactory, carrypost.Context, carrypost.Producer, carrypost.Consumer, carrypost.QueueBrowser),
    *(carrypost.Sent, carrypost.Request, carrypost.Message, carrypost.TextMessage, carrypost.BytesMessage),
    *(carrypost.MapMessage, carrypost.StreamMessage, carrypost.ObjectMessage, carrypost.Topic, carrypost.Queue),
    *(carrypost.TemporaryQueue, carrypost.TemporaryTopic, naming.InitialContext),
]


@pytest.mark.parametrize("kind", API, ids=[kind.__name__ for kind in API])
def test_every_public_name_of_the_api_is_in_a_document(kind: type) -> None:
    """Check that public names are documented; names that only the engine calls are private."""
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS if path.parent.name == "docs"]
    code = " ".join(
        span for text in texts for span in re.findall(r"^```.*?^```|`[^`\n]+`", text, re.DOTALL | re.MULTILINE)
    )
    names = set(re.findall(r"\w+", code))
    public = {name for name in dir(kind) if not name.startswith("_") and not is_java_name(kind, name)}
    assert public - names == set()


SCENARIOS = [block[2] for block in BLOCK.finditer(text_of("emulator.md")) if block[1] == "toml"]


@pytest.mark.parametrize("text", SCENARIOS, ids=[text.splitlines()[0] for text in SCENARIOS])
def test_an_example_of_a_scenario_has_only_keys_and_values_that_there_are(text: str) -> None:
    whole = text if "duration_s" in tomllib.loads(text) else f"duration_s = 60\n{text}"
    assert Scenario.parse(whole).duration_us > 0


def test_every_model_of_mobility_has_an_example() -> None:
    shown = {tomllib.loads(text).get("mobility", {}).get("model") for text in SCENARIOS}
    assert shown - {None} == set(MODELS)
    shown = {tomllib.loads(text).get("contacts", {}).get("model") for text in SCENARIOS}
    assert shown - {None} == set(CONTACT_MODELS)


def test_mypy_checks_the_programs_of_documents(tmp_path: Path) -> None:
    (job,) = check.jobs(["types"], tmp_path)
    files = {Path(each).stem: Path(each) for each in job.argv if "documents" in each}
    assert len(files) == len(EXAMPLES)
    where, source, _ = next(each for each in EXAMPLES if each[0].startswith("README.md"))
    line = int(where.partition(":")[2])
    written = files[f"README_{line}"].read_text(encoding="utf-8")
    assert written.splitlines()[line - 1 :] == source.splitlines()  # Errors name the lines of the document.


def test_the_readme_has_a_first_program() -> None:
    assert any(where.startswith("README.md") and output for where, _, output in EXAMPLES)


# --- links ---------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Return the names under which the headings of a document can be linked."""
    titles = re.findall(r"^#+ (.*)$", prose_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=[path.name for path in DOCUMENTS])
def test_internal_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.is_file() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_readme_leads_to_every_document() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", readme))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == named


def test_the_commands_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in DOCUMENTS:
        assert set(re.findall(r"\bmake (demo|test|soak|clean|\w+(?=`))", path.read_text(encoding="utf-8"))) <= targets


UNCLEAR = re.compile(  # In lower case: a pattern that ignores case takes four times as long.
    r"agreement with these confirms|as its text does|after ± stands|in about microseconds|bring to brokers of others"
    r"|it is never an error|they are lost to others|the mark means|by which use extends|no answer before its question"
    r"|on stderr, once each|on both sides alike|do not tell whether|searches for rare faults"
)
"""Wordings that readers had to read twice."""


def test_no_text_has_a_wording_that_readers_stumbled_over() -> None:
    found = []
    for path in (*DOCUMENTS, ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "src").rglob("*.py")):
        text = " ".join(path.read_text(encoding="utf-8").lower().split())
        found += [f"{path.name}: {each}" for each in UNCLEAR.findall(text) if path.name != "CHANGELOG.md"]
    assert found == []


def test_channels_and_faults_mean_one_thing_each_in_the_glossary() -> None:
    words = dict(re.findall(r"^\| (channel|fault|injected failure) \| (.*) \|$", text_of("glossary.md"), re.MULTILINE))
    assert "event channel" in words["channel"]
    assert "modulator" in words["fault"]
    assert "emulation" in words["injected failure"]


# --- made from the code --------------------------------------------------------------------------------------


@pytest.mark.pure("reads signatures")
def test_the_parts_made_from_the_code_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "documents.py"), "--check"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own tool
    assert outcome.stderr == ""
    assert outcome.returncode == 0


def test_every_setting_is_used_or_has_somebody_who_needs_it() -> None:
    folders = (ROOT / "scenarios", ROOT / "examples", ROOT / "benchmarks")
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in {".py", ".toml"}]
    used = {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    section = text_of("settings.md").split("\n## Who changes which setting\n")[1].split("\n## ")[0]
    told = re.findall(r"`([\w.*]*\w[\w.*]*)`", section)
    names = [
        f"{key}.{each}" if isinstance(value, dict) else key
        for key, value in written(Settings()).items()
        for each in (value if isinstance(value, dict) else [key])
    ]
    unused = [name for name in names if name.rpartition(".")[2] not in used]
    assert [name for name in unused if not any(fnmatch(name, each) for each in told)] == []
    assert [each for each in told if not any(fnmatch(name, each) for name in names)] == []


def test_the_threat_model_names_every_limit_with_its_default() -> None:
    _, _, section = text_of("threat-model.md").partition("\n## Limits\n")
    units = {"": 1, " KiB": 1024, " MiB": 1024 * 1024}
    told = {
        name: float(number.replace(",", "")) * units[unit]
        for name, number, unit in re.findall(r"`(\w+)` \(([\d,.]+)( [KM]iB)?\)", section)
    }
    assert told == {each.name: each.default for each in dataclasses.fields(Limits)}


def rows(document: str, heading: str) -> list[tuple[str, ...]]:
    """First cells that are code, of the table under a heading, with the others of their rows."""
    section = text_of(document).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| `(.*) \|$", section, re.MULTILINE)
    return [tuple(("`" + line).split(" | ")) for line in lines]


def _choices(given: ast.expr) -> tuple[ast.expr, ...]:
    return (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,)


def reasons_in_code() -> set[object]:
    """Return every reason that the core gives: constants in calls that refuse, and the enumerations."""
    found: set[object] = {refusal.value for refusal in Refusal} | {"expired", "no-room", "share"}
    place = {"refuse": 0, "block_from": 2}
    place |= dict.fromkeys(("RemoteError", "LimitError", "DecodeError", "ForgeryError", "ForgetfulError"), 0)
    named = re.compile(rf"\b(?:{'|'.join(place)})\(")
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "src" / "carrypost").rglob("*.py"))
    for text in filter(named.search, texts):  # To parse the others would take most of the time.
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                for given in node.args[place[name] :][:1] if name in place else ():
                    found |= {each.value for each in _choices(given) if isinstance(each, ast.Constant)}
    return found


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", text_of("threat-model.md")))
    there = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named
    assert named <= there


def test_every_reason_for_refusal_is_in_the_protocol() -> None:
    told = [cells[0].strip("`") for cells in rows("protocol.md", "Reasons for refusal")]
    assert len(told) == len(set(told))
    assert set(told) == reasons_in_code()


def test_every_column_and_kind_of_a_record_is_told() -> None:
    section = text_of("testing.md").split("\n## Watching and recording\n")[1].split("\n## ")[0]
    columns, _, kinds = section.partition("| kind | when |")
    assert re.findall(r"^\| `(\w+)` \|", columns, re.MULTILINE) == [column.name for column in SCHEMA]
    assert {kind.value for kind in Kind} <= set(re.findall(r"`(\w+)`", kinds))


def test_the_glossary_is_in_order_and_has_each_word_once() -> None:
    words = re.findall(r"^\| ([a-z][\w -]*) \|", text_of("glossary.md").split("## Papers")[0], re.MULTILINE)[1:]
    assert words == sorted(set(words))


# --- the host ------------------------------------------------------------------------------------------------


def codes(heading: str, document: str = "host.md") -> list[str]:
    """Return all code in the first cells of the table under a heading."""
    return [code for cells in rows(document, heading) for code in re.findall(r"`([^`]+)`", cells[0])]


def as_told(name: str, member: object) -> str:
    """A member of the host as its document writes it: parameters by name, those that go by keyword only with `=`."""
    if isinstance(member, property):
        return name
    assert callable(member)
    _, *parameters = inspect.signature(member).parameters.values()
    shown = [each.name + "=" * (each.kind is inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    return f"{name}({', '.join(shown)})"


@pytest.mark.pure("reads signatures")
def test_every_call_of_a_host_is_told_with_its_parameters() -> None:
    taken = re.findall(r"^\d\. \*\*`(.+?)`\*\*", text_of("host.md"), re.MULTILINE)
    told = [*codes("Calls to the host"), *codes("Queries"), *taken]
    public = {name: member for name, member in vars(Host).items() if not name.startswith("_")}
    assert sorted(told) == sorted(as_told(*each) for each in [*public.items(), ("Host", Host.__init__)])


def test_every_event_of_a_host_is_told_once() -> None:
    assert sorted(codes("Outputs: batches, datagrams, events")) == sorted(event.__name__ for event in get_args(Event))


def test_every_kind_of_key_in_the_store_is_told_once() -> None:
    kinds = [value for name, value in vars(journal).items() if name.isupper() and isinstance(value, str)]
    told = [re.findall(r'^\("(\w+)", ', code) for code in codes("What is in the store")]
    assert sorted(told) == sorted([kind] for kind in kinds)


# --- a copy's life -------------------------------------------------------------------------------------------
# The cache has room for one message. `ours` is the one whose life is told, `other` whatever else there is.

Moves = set[tuple[str, str, str]]


def descriptor(name: str, pieces: int = 1) -> Descriptor:
    length = pieces * PIECE_BYTES
    return Descriptor(name, 1, 1, 0, 1_000, "news", length, length, PayloadCodec.BLANK, b"", 1024)


class Life:
    """One message and a cache of one place."""

    def __init__(self, pieces: int = 1) -> None:
        self.cache = Cache(Settings.emulated(cache_messages_max=1))
        self.ours = descriptor("ours", pieces)

    @property
    def copy(self) -> Copy:
        copy = self.cache.get(self.ours.id)
        assert copy is not None
        return copy

    def admit(self, message: Descriptor, privilege: int, held: int, *, own: bool = False) -> None:
        nbytes = sum(message.piece_length(piece) for piece in range(held.bit_length()))
        self.cache.admit(message, nbytes=nbytes, privilege=privilege, interesting=True, own=own, held=held, now=0)

    def crowd(self) -> None:
        """Something more privileged comes in, if it can."""
        if self.cache.get(descriptor("other").id) is None:
            self.admit(descriptor("other"), 9, 1)

    def leave(self) -> None:
        other = self.cache.get(descriptor("other").id)
        if other is not None:
            self.cache.remove(other, Reason.EXPIRED)

    def confirm(self) -> None:
        self.cache.unpin((self.copy,), DELIVERIES)
        self.cache.mark_done((self.copy,))

    def deliver(self) -> None:
        self.cache.unpin((self.copy,), ORDER | PUBLISHING)
        self.cache.pin((self.copy,), DELIVERIES)

    def publish_withheld(self) -> None:
        self.admit(self.ours, 1, full_mask(self.ours.pieces), own=True)
        self.cache.pin((self.copy,), PUBLISHING)

    def decline(self) -> None:
        self.crowd()
        self.admit(self.ours, 1, 1)

    @property
    def state(self) -> str:
        return state_of(self.cache, self.ours.id).value


ANYWHERE: dict[str, Callable[[Life], object]] = {
    "evicted": Life.crowd,
    "withdrawn": lambda life: life.cache.remove(life.copy, Reason.WITHDRAWN),
    "deadline": lambda life: life.cache.expire(1_000),
    "room again": Life.leave,
}
"""Inputs that any copy, or the memory of one, may get."""
MOVES: dict[str, dict[str, Callable[[Life], object]]] = {
    "unknown": {
        "first of several pieces": lambda life: life.admit(life.ours, 1, 1),
        "only piece": lambda life: life.admit(life.ours, 1, full_mask(life.ours.pieces)),
        "no room": Life.decline,
        "published here": lambda life: life.admit(life.ours, 1, full_mask(life.ours.pieces), own=True),
        "published here, withheld": Life.publish_withheld,
    },
    "partial": {"last piece": lambda life: life.cache.grow(life.copy, 1, PIECE_BYTES)},
    "whole": {
        "delivered": Life.deliver,
        "held back": lambda life: life.cache.pin((life.copy,), ORDER),
        "too many held back": lambda life: life.cache.remove(life.copy, Reason.PENDING),
    },
    "waiting": {"delivered": Life.deliver, "wanted no more": lambda life: life.cache.unpin((life.copy,), ORDER)},
    "unsent": {"delivered": Life.deliver, "durable": lambda life: life.cache.unpin((life.copy,), PUBLISHING)},
    "finished": {"delivered": Life.deliver},
    "pinned": {"confirmed": Life.confirm},
}
"""Further moves, by state."""


def replayed(path: tuple[str, ...]) -> Life:
    life = Life(2 if path[:1] == ("first of several pieces",) else 1)
    for move in path:
        (ANYWHERE | MOVES.get(life.state, {}))[move](life)
    return life


def moves_of_the_cache() -> Moves:
    """Return everything that can happen, in every state that can be reached."""
    found: Moves = set()
    paths: dict[str, tuple[str, ...]] = {"unknown": ()}
    todo = ["unknown"]
    while todo:
        before = todo.pop()
        here = MOVES.get(before, {}) | ({} if before == "unknown" else ANYWHERE)
        for move in here:
            after = replayed((*paths[before], move)).state
            if after != before:
                found.add((before, move, after))
            if after not in paths:
                paths[after] = (*paths[before], move)
                todo.append(after)
    return found


def test_a_copy_lives_as_its_table_tells() -> None:
    told = {(before.value, move.value, after.value) for (before, move), after in COPY_TABLE.items()}
    assert told == moves_of_the_cache()
