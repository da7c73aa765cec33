"""The parts of the documentation that are made from the code.

    python tools/documents.py            write them into docs/, between their markers
    python tools/documents.py --check    only say which are not up to date

Types and bounds of fields come from the annotations that the decoder enforces, meanings from the docstrings
under the fields (or, for a field without one, under the alias that is its type). Settings, constants and state
machines come from where the code keeps them.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from carrypost import config, gossip, host, island
from carrypost.config.rules import Rows, Rule, rules_of
from carrypost.daemon.metric_families import MEANS, READINGS
from carrypost.emu import scenario
from carrypost.emu import scenario_tables as tables
from carrypost.gossip.discovery.neighbour import NEIGHBOUR_TABLE, NeighbourInput, NeighbourState
from carrypost.gossip.holdings import cache
from carrypost.gossip.strategy import exchange_contact as exchange
from carrypost.gossip.wire import fields, frames
from carrypost.lab import schemas
from carrypost.lab.metrics import FAMILIES
from carrypost.log import events
from carrypost.log.events import DeadLetter
from carrypost.messaging import claim_and_claimant, control
from carrypost.model import descriptor, headers
from carrypost.node import settings as node_settings
from carrypost.overlay import relocation
from carrypost.overlay.items import AUTHORS, Who

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # As a script it knows its own folder only.

from tools.conformance import conformance_tables  # noqa: E402 - needs the line above
from tools.copy_moves import COPY_TABLE  # noqa: E402 - likewise
from tools.jms_names import names_table  # noqa: E402 - likewise

DOCS = ROOT / "docs"
MARKED = re.compile(
    r"(<!-- made by tools/documents\.py: (?P<name>[\w ]+) -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL
)

# ---------------------------------------------------------------------------------------------- structures

_POWERS = {2**exponent - less: f"2^{exponent}" + " - 1" * less for exponent in (16, 31, 53, 63) for less in (0, 1)}


def frame_tables() -> str:
    """Return a table per frame and per entry of a frame."""
    inner = [entry for kind in frames.WIRE_KINDS for entry in frames.entries(kind)]
    return "\n\n".join(_section(kind) for kind in (*frames.WIRE_KINDS, *inner))


def descriptor_table() -> str:
    """Return the fields of a descriptor, in the order of their encoding, and those of its parts."""
    parts = (descriptor.Predecessor, headers.Headers, headers.Covers)
    return "\n\n".join([_fields(descriptor.Descriptor), *(_section(part) for part in parts)])


def control_tables() -> str:
    """Return a table per item of a control message, and per part of one."""
    return "\n\n".join(_section(kind) for kind in (*control.KINDS, control.Terms, DeadLetter))


def _section(kind: type[msgspec.Struct]) -> str:
    tag = kind.__struct_config__.tag
    title = f"### {kind.__name__}" if tag is None else f"### {tag}: {kind.__name__}"
    return "\n".join([title, "", inspect.getdoc(kind) or "", "", _fields(kind)])


def _fields(kind: type[msgspec.Struct]) -> str:
    aliases = _docstrings(_parsed(fields)) | _docstrings(_parsed(sys.modules[kind.__module__]))
    source = _class(sys.modules[kind.__module__], kind)
    meanings = _docstrings(source)
    types = {
        node.target.id: node.annotation.id
        for node in source.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
    }
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    array = kind.__struct_config__.array_like or kind.__struct_config__.tag is not None
    rows = [
        (
            f"`{field.name}`" if array else f"`{field.name}` (`{field.encode_name}`)",
            _type(field.type) + ("" if field.required else ", optional"),
            meanings.get(field.name) or aliases.get(types.get(field.name, ""), ""),
        )
        for field in info.fields
    ]
    return _table(("field" if array else "field (key)", "type", "meaning"), rows)


def _type(kind: msgspec.inspect.Type) -> str:  # noqa: PLR0911 - one answer per kind
    """Describe the values that the decoder accepts."""
    match kind:
        case msgspec.inspect.Metadata():
            return _type(kind.type)
        case msgspec.inspect.IntType():
            return _whole(kind)
        case msgspec.inspect.StrType() | msgspec.inspect.BytesType():
            return _lengths(kind)
        case msgspec.inspect.VarTupleType():
            return f"array ({_type(kind.item_type)})"
        case msgspec.inspect.TupleType():
            return f"array [{'; '.join(map(_type, kind.item_types))}]"
        case msgspec.inspect.StructType():
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
        case msgspec.inspect.EnumType():
            return ", ".join(f"{member.value} {member.name.lower()}" for member in kind.cls)
        case msgspec.inspect.UnionType():
            return " or ".join(_type(each) for each in kind.types)
        case msgspec.inspect.DictType():
            return f"map ({_type(kind.key_type)}: {_type(kind.value_type)})"
    return _WORDS[type(kind)]


_WORDS: dict[type, str] = {
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.FloatType: "float",
    msgspec.inspect.NoneType: "nil",
    msgspec.inspect.AnyType: "bytes or text",  # only the author, which `descriptor.decode` checks itself
}


def _whole(kind: msgspec.inspect.IntType) -> str:
    if kind.ge is None:
        return "integer"
    return f"{kind.ge} to {_POWERS.get(kind.le or -1, kind.le or '2^64 - 1')}"


def _lengths(kind: msgspec.inspect.StrType | msgspec.inspect.BytesType) -> str:
    """Types count characters of text; the codec has checks of its own for bytes."""
    least, most = kind.min_length, kind.max_length
    text, unit = ("text, ", "characters") if isinstance(kind, msgspec.inspect.StrType) else ("", "bytes")
    if most is None:
        return text.rstrip(", ") or unit
    return f"{text}{most} {unit}" if least == most else f"{text}{least or 0} to {most} {unit}"


def _parsed(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _class(module: ModuleType, kind: type) -> ast.ClassDef:
    found = (node for node in _parsed(module).body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    return next(found)


def _docstrings(source: ast.Module | ast.ClassDef) -> dict[str, str]:
    """Return names that are assigned or annotated, with the docstring below them."""
    found = {}
    for above, below in pairwise(source.body):
        target = above.targets[0] if isinstance(above, ast.Assign) else getattr(above, "target", None)
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[target.id] = " ".join(str(below.value.value).split())
    return found


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# ------------------------------------------------------------------------------------------ state machines


def link_machine() -> str:
    """Return the table of a link's states, and its diagram."""
    head = ("state", *(sign.value for sign in NeighbourInput))
    rows = [(state.value, *(NEIGHBOUR_TABLE[state, sign].value for sign in NeighbourInput)) for state in NeighbourState]
    return _table(head, rows) + "\n\n" + _diagram(NeighbourState.SILENT, NEIGHBOUR_TABLE)


def exchange_machine() -> str:
    """Return the diagram of an exchange, and what its states mean."""
    return _machine(exchange, exchange.ExchangeState, exchange.EXCHANGE_TABLE)


def copy_machine() -> str:
    """Return the diagram of a copy's life, and what its states mean."""
    return _machine(cache, cache.CopyState, COPY_TABLE)


def _machine(module: ModuleType, kind: type[Enum], table: Mapping[tuple[Any, Any], Any]) -> str:
    """Return a diagram, which starts in the first state, and what the states mean."""
    meanings = _docstrings(_class(module, kind))
    rows = [(state.value, meanings[state.name]) for state in kind]
    return _diagram(next(iter(kind)), table) + "\n\n" + _table(("state", "meaning"), rows)


def drop_reasons() -> str:
    """Why copies are dropped."""
    meanings = _docstrings(_class(events, events.Reason))
    rows = [(f"`{reason.value}`", meanings[reason.name]) for reason in events.Reason]
    return _table(("reason", "meaning"), rows)


def claim_machine() -> str:
    """Return the diagram of a claim, what its states mean, and what moves it."""
    found = {
        node.name: _docstrings(node) for node in _parsed(claim_and_claimant).body if isinstance(node, ast.ClassDef)
    }
    states = [(state.value, found["ClaimState"].get(state.name, "")) for state in claim_and_claimant.ClaimState]
    moves = [(move.value, found["ClaimInput"].get(move.name, "")) for move in claim_and_claimant.ClaimInput]
    diagram = _diagram(claim_and_claimant.ClaimState.WAITING, claim_and_claimant.MOVES)
    return "\n\n".join([diagram, _table(("state", "meaning"), states), _table(("move", "meaning"), moves)])


def _diagram(start: Enum, table: Mapping[tuple[Any, Any], Any]) -> str:
    """Return a state machine as mermaid draws it."""
    moves = [
        f"    {before.value} --> {after.value}: {move.value}"
        for (before, move), after in table.items()
        if before is not after
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {start.value}", *moves, "```"])


def source_machine() -> str:
    """Return the diagram of a relocation's source, and its table."""
    return _steps(relocation.SourceState, relocation.SOURCE_TABLE, relocation.SOURCE_REPEATS)


def destination_machine() -> str:
    """Return the diagram of a relocation's destination, and its table."""
    return _steps(relocation.DestinationState, relocation.DESTINATION_TABLE, relocation.DESTINATION_REPEATS)


def _steps(
    kind: type[Enum],
    table: Mapping[tuple[Any, Any], relocation.Transition[Any]],
    repeats: Mapping[Any, relocation.Action],
) -> str:
    """Return a machine with outputs: its diagram, its actions, and the meanings of its states."""
    rows = [
        (before.value, what.value, ", ".join(action.value for action in step.actions) or "–", step.after.value)
        for (before, what), step in table.items()
    ]
    meanings = _docstrings(_class(relocation, kind))
    states = [(state.value, meanings[state.name], repeats[state].value if state in repeats else "–") for state in kind]
    return "\n\n".join([
        _diagram(next(iter(kind)), {key: step.after for key, step in table.items()}),
        _table(("state", "input", "does", "next"), rows),
        _table(("state", "meaning", "repeats"), states),
    ])  # fmt: skip


def relocation_actions() -> str:
    """Tables of both sides of a relocation."""
    meanings = _docstrings(_class(relocation, relocation.Action))
    return _table(("action", "meaning"), [(each.value, meanings[each.name]) for each in relocation.Action])


# ------------------------------------------------------------------------------------ settings and constants


def overlay_authors_table() -> str:
    """Items of the overlay, and whose items count."""
    lines = ["| item | meaning | sent to | accepted if its author is |", "| --- | --- | --- | --- |"]
    whose = {
        Who.ANYBODY: "anybody", Who.ELIGIBLE: "listed in `overlay.brokers`, if that is not empty",
        Who.BROKER: "a known broker", Who.CLIENT: "the client", Who.LISTED: "the client, or a broker of the channel",
        Who.HOME: "a known broker that is the client's home, was asked to be, or was named by `Moving`",
        Who.PARTY: "a known broker with that part in the relocation",
    }  # fmt: skip
    for kind, (who, to_all) in AUTHORS.items():
        says = (kind.__doc__ or "").splitlines()[0]
        lines.append(f"| `{kind.__name__}` | {says} | `{'overlay/all' if to_all else 'overlay/N'}` | {whose[who]} |")
    return "\n".join(lines)


def settings_table() -> str:
    """Return every field of `Settings` but the limits."""
    return _config_table(config.Settings)


def messaging_table() -> str:
    """Return every field of `Messaging`."""
    return _config_table(config.settings.Messaging)


def limits_table() -> str:
    """Return every field of `Limits`."""
    return _config_table(config.Limits)


def _config_table(kind: type) -> str:
    source = next(
        node
        for node in _parsed(sys.modules[kind.__module__]).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    meanings = _docstrings(source)
    defaults = {each.name: _default(each) for each in dataclasses.fields(kind)}
    rows = [
        (f"`{name}`", _value(name, defaults[name]), _allowed(name, rule), meanings[name])
        for name, rule in rules_of(kind).items()
        if isinstance(rule, Rule) and not isinstance(rule, Rows)
    ]
    return _table(("name", "default", "allowed", "meaning"), rows)


def _default(each: dataclasses.Field[object]) -> object:
    return each.default if each.default_factory is dataclasses.MISSING else each.default_factory()


def _allowed(name: str, rule: Rule) -> str:
    (meta,) = getattr(rule.kind, "__metadata__", (None,))
    if meta is None or meta.ge is None:
        return rule.allowed
    end = f' or "{rule.none}"' if rule.none else ""
    if meta.le >= config.UNBOUNDED:
        return f"{_value(name, meta.ge)} or more{end}"
    return f"{_value(name, meta.ge)} to {_value(name, meta.le)}{end}"


def _value(name: str, value: object) -> str:  # noqa: PLR0911 - one answer per kind
    """Return a value as people write it: flags as in TOML, bytes in KiB and MiB where that is exact."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == ():
        return {"hear": '"all"', "mtu_bytes": '"interface"', "interfaces": "automatic"}.get(name, "none")
    if isinstance(value, tuple):
        return f"[{', '.join(_value(name, one) for one in value)}]"
    if not isinstance(value, int | float):
        return f'"{value}"' if value else "empty"
    if "port" in name:
        return str(value)
    for unit, size in (("MiB", config.MIB), ("KiB", config.KIB)):
        if "bytes" in name and value >= size and value % size == 0:
            return f"{int(value // size):,} {unit}"
    # Python would write a microsecond as 1e-06.
    return f"{value:,.9f}".rstrip("0") if 0 < value < 0.001 else f"{value:,}".removesuffix(".0")


def scenario_tables() -> str:
    """Return every table of a scenario but the settings of the nodes and mobility."""
    kinds = (
        ("Top level", tables.RunTable), ("[nodes]", tables.NodesTable),
        ("[[nodes.group]]", tables.GroupTable), ("[contacts]", tables.ContactsTable),
        ("[radio]", tables.RadioTable), ("[[radio.link]]", tables.LinkTable),
        ("[population]", tables.PopulationTable),
        ("[[workload]]", tables.WorkloadTable), ("[faults]", tables.FaultsTable),
        ("[[faults.event]]", tables.EventTable),
    )  # fmt: skip
    return "\n\n".join(_scenario_table(f"### {title}", kind) for title, kind in kinds)


def mobility_tables() -> str:
    """Return every model of mobility, and the tables that it has inside."""
    found = []
    for name, (module, kind_name) in scenario.MODELS.items():
        kind = getattr(importlib.import_module(f"carrypost.mobility.{module}"), kind_name)
        found.append(_scenario_table(f'### model = "{name}"', kind))
        found += [
            _scenario_table(f"### [[mobility.{name}]]", rule.kind)
            for name, rule in rules_of(kind).items()
            if isinstance(rule, Rows)
        ]
    return "\n\n".join(found)


def contact_model_tables() -> str:
    """Return every model of contacts."""
    found = []
    for name, (module, kind_name) in scenario.CONTACT_MODELS.items():
        kind = getattr(importlib.import_module(f"carrypost.mobility.{module}"), kind_name)
        found.append(_scenario_table(f'### [contacts], model = "{name}"', kind))
    return "\n\n".join(found)


def _scenario_table(title: str, kind: type) -> str:
    return "\n\n".join([title, inspect.getdoc(kind) or "", _config_table(kind)])


_CONSTANTS = (
    ("neighbour.SILENT_PERIODS", "silent periods after which a link has ended"),
    ("neighbour._PERIOD_US_MIN", "shortest period of a neighbour's announcements; a shorter one counts as this"),
    ("neighbour._PERIOD_US_MAX", "longest period of a neighbour's announcements; a longer one counts as this"),
    ("announcing._HASTE_US", "time within which a change is announced, at a random moment"),
    ("announcing._GAP_US", "shortest time since the last announcement"),
    ("announcing._REPORT_US", "time within which unasked Parcels are confirmed"),
    ("announcing._JITTER", "largest share of a period by which it is shortened at random"),
    (
        "neighbours._OVERTAKEN_US",
        "longest time by which frames of a contact may overtake the announcement that begins it",
    ),
    ("announcing._PROFILE_UNASKED_BYTES_MAX", "longest profile that is sent without a request"),
    ("neighbours._PROFILE_RETRY_US", "shortest time between two requests for a profile"),
    ("neighbour.ROTATING", "one place in so many rotates among waiting nodes"),
    ("neighbour.STAY_PERIODS", "longest periods for which a rotating place is kept"),
    ("neighbour.LAPSE_PERIODS", "longest periods without an announcement after which a node no longer waits"),
    ("neighbour.WAITING_MAX", "nodes that may wait for a place"),
    ("neighbour.HEARD_BYTES", "size of an entry of a heard-list"),
    ("neighbour.ANNOUNCE_BYTES", "largest size of the rest of an announcement"),
    ("review._REVIEW_GRACE", "announcements that the larger id waits longer before it repeats a review"),
    ("review._TURN_US", "silence within a neighbour's review after which this side begins its own"),
    ("lists._TURN_US", "silence within a neighbour's session after which this side compares sets"),
    ("lists._SUMMARIES", "lists without an answer after which sets are compared"),
    ("lists.SESSION_LISTED_MAX", "messages in one list; with more, sets are compared"),
    ("sending.GIVEN_MAX", "messages that may wait to be sent to a neighbour that did not request them"),
    ("review.FEW", "largest bucket whose members are listed"),
    ("offers.OPEN_PAGES_MAX", "unanswered offers to one neighbour"),
    ("offers._OPEN_JOBS_MAX", "messages that a neighbour requested and that are not sent yet"),
    ("offers._PARTIAL_US", "shortest time between two offers of a half-received message that grows"),
    ("offers._FEW_LINKS", "neighbours up to which new messages are offered at once"),
    ("requests._REQUEST_RETRY_US", "time after which a request without effect is repeated; doubles"),
    ("requests._REQUEST_DOUBLINGS", "number of these doublings"),
    ("requests._REQUEST_TRIES", "repetitions, if nothing arrives at all; then other neighbours are asked"),
    ("requests._FEW_WANTS", "requested messages up to which lost requests are repeated sooner than that"),
    ("requests._REASK_US", "time after a request from which a repeated offer means that the request was lost"),
    (
        "inbound._DECLINE_AGAIN_US",
        "time after declining a message from which further frames of it mean that the sender does not know",
    ),
    ("wants.PATIENCE_US", "time without a piece after which a message is requested from other neighbours"),
    ("wants.BLOCK_US", "time for which a message that failed is not accepted from the same neighbour"),
    ("wants.SHARE_BLOCK_US", "the same, if the neighbour or the author has used up its share of a full cache"),
    ("requests._LOOK_GAP_US", "shortest time between two checks of declined messages"),
    (
        "memories.PURGED_IDS_MAX",
        "acknowledged ids of unknown messages; those of the node that was silent longest are dropped first",
    ),
    ("memories.PURGED_NODE_IDS_MAX", "of these, ids that one node named: its latest"),
    ("memories._PURGED_SWEEP_US", "shortest time between two searches for expired ones"),
    (
        "memories.SLACK_US_MAX",
        "longest time for which ids of finished messages outlive their deadlines after the clock was set forward",
    ),
    ("memories._INVITED_MIN", "declined messages, at least, that may be offered again after one review"),
    ("offers._SHARE_WAIT_US", "time (at most `coalesce_s`) that a burst waits for requests of other neighbours"),
    ("requests._ACK_FRAMES", "transfer frames after which an acknowledgement is sent at once"),
    ("requests._ACK_DELAY_US", "delay of an acknowledgement otherwise, unless a burst ends"),
    ("requests._ACK_UNASKED", "unreported unasked Parcels and other frames after which an acknowledgement is sent"),
    ("arrivals_and_removals._FRESH_MAX", "messages of one step that are pushed; more are offered"),
    ("sending.WINDOW_BYTES_MAX", "bytes in flight to a neighbour, requested or not, up to which messages are pushed"),
    ("transfers.transfers._UNASKED_BYTES_MAX", "unasked Parcels accepted from a neighbour between two reports to it"),
    ("sending._ON_ITS_WAY_US", "time after a push within which an announcement may have crossed it"),
    ("loss.INITIAL_WINDOW_BYTES", "first window"),
    ("loss._DATAGRAMS_MIN", "smallest window, in datagrams"),
    ("loss._REDUCTION", "factor by which a loss shrinks the window, once per round trip"),
    ("loss.PACKET_THRESHOLD", "later frames acknowledged after which a frame counts as lost"),
    ("loss._LOST_MAX", "lost frames remembered, which may be acknowledged after all"),
    ("loss._TIMEOUT_START_US", "retransmission timeout before the first round trip is measured"),
    ("loss._EXPECTED_FACTOR", "multiple of the round trip of a review or a request used instead, if that is longer"),
    ("loss._TIMEOUT_MIN_US", "shortest retransmission timeout"),
    ("loss._TIMEOUT_MAX_US", "longest retransmission timeout"),
    ("loss._ANSWER_MIN_US", "shortest patience for an answer to a review, an offer or a request; doubles"),
    ("loss._ANSWER_DOUBLINGS", "number of these doublings"),
    ("loss._BACKOFF_US", "longest timeout after backing off, or twice the timeout that round trips give"),
    ("loss._BACKOFF_BLIND_US", "the same if nothing is known of the round trip"),
    ("loss._TRIES", "on a path, the timeout grows to this part of `island_patience_s`, or to two round trips"),
    (
        "outbox.TIMEOUTS_DOUBTFUL",
        "timeouts in a row after which descriptors and hash lists are sent again, and long Parcels as two frames",
    ),
    ("island._SURE_US", "time after which a host counts as reachable, or as unreachable"),
    ("island.island._STATE_EVERY", "announcements after which a LinkState is sent even without changes"),
    ("island.island._DIGEST_US", "shortest time between two LinkStates of which only the digest changed"),
    (
        "island.island._ALONE_US",
        "time after a change within which such a LinkState is sent even without an announcement",
    ),
    ("flood._STATE_REPEATS", "further announcements with which a changed LinkState is repeated"),
    ("island.island._STATE_US", "time within which neighbours are told of changed relays"),
    ("island.island._GATHER_US", "time within which records of others are processed together"),
    ("island.island._AT_ONCE", "changes of its own record that a host sends before `island_s_min` applies"),
    ("island.island._GAP_US", "shortest time between two of these"),
    ("island.island._DENY_US", "time after which a false claim is denied"),
    ("island.island._DENIED_MAX", "claims that a host can deny"),
    ("flood.JITTER_US", "time within which a record is forwarded, at a random moment"),
    ("flood._PATIENCE_US", "time for which digests may differ before a host asks; the larger id waits twice as long"),
    ("flood._BEHIND_US", "age of changes up to which a neighbour that lacks them gets no heads, because it will ask"),
    ("flood._ASK_US", "time without success, after asking for everything that is lacking, after which heads are sent"),
    ("flood._REPAIR_US", "time after comparing heads within which arriving records are forwarded"),
    ("flood._DOUBLINGS", "doublings, from 1 s, of the interval between comparisons without success; then they end"),
    ("flood._HEADS_PER_S", "heads that a host sends per second, to all neighbours together"),
    ("flood._HEADS_BURST_S", "seconds of that rate which may be saved up"),
    ("links._SUMS_MAX", "changes of the digest that are tried to find what a neighbour lacks"),
    ("links._AUTHOR_PER_S", "records of one author that are accepted per second"),
    ("links._AUTHOR_BURST_S", "seconds of that rate which may be saved up"),
    ("links.FORGET_US", "time for which the record of an unreachable host is kept"),
    ("links.AVOIDED_US", "time for which an edge that failed to forward a Relay is avoided"),
    ("links._AVOIDED_MAX", "edges avoided at the same time"),
    ("relaying.IDLE_US", "time without traffic after which a route is closed"),
    ("relaying.FLOWS_MAX", "paths of Relays that a relay remembers, and need not check again"),
    ("relaying.RELAY_BYTES_MIN", "smallest size that a Relay counts for in `link_relay_bytes_per_s`"),
    ("accounts.RECORDS_PER_S", "signed records of acknowledgements and of links that are sent per second"),
    ("link._ANSWERS_PER_S", "frames that a neighbour gets for the asking, per second: profiles, lists, reports"),
    ("link._ANSWERS_BURST_S", "seconds of that rate which may be saved up"),
    ("ways.WITHHELD_US_MAX", "longest time for which a message is withheld from the epidemic"),
    ("ways.DOUBT_US", "two failures within this time make a recipient count as unreliable for as long"),
    ("ways.FANOUT", "largest number of hops of all paths to a message's recipients, per other host of the island"),
    ("ways._AGAIN_US", "time after which a recipient in the island that had no path is tried again"),
)


def _core_module(name: str) -> ModuleType:
    """Return the module of the core that is called so, in whichever package it is."""
    parts = (gossip, host, island)
    found = [each.name for part in parts for each in pkgutil.walk_packages(part.__path__, f"{part.__name__}.")]
    return importlib.import_module(next(path for path in found if path.endswith(f".{name}")))


def constants_table() -> str:
    """Constants of the exchange that are not settings."""
    rows = []
    for path, meaning in _CONSTANTS:
        module, _, name = path.rpartition(".")
        value = getattr(_core_module(module), name)
        shown = f"{value / 1e6:g} s" if "_US" in name else _value(name.lower(), value)
        rows.append((f"`{path}`", shown, meaning))
    return _table(("constant", "value", "meaning"), rows)


# ---------------------------------------------------------------------------------------------- laboratory


def lab_tables() -> str:
    """Return the tables that the commands of the laboratory read and write."""
    kept = (schemas.POSITIONS, schemas.CONTACTS, schemas.RECORDS, schemas.RUNS, schemas.FAILURES)
    return "\n\n".join(_lab_table(each) for each in kept)


def family_tables() -> str:
    """Return the families of metrics."""
    return "\n\n".join(_lab_table(each) for each in FAMILIES)


def _lab_table(table: schemas.Table) -> str:
    rows = [
        (f"`{each.name}`", f"{each.type}{', may be empty' if each.nullable else ''}", each.meaning)
        for each in table.columns
    ]
    sentence = f"{table.meaning[0].upper()}{table.meaning[1:]}."
    return f"#### {table.name}\n\n{sentence}\n\n{_table(('column', 'type', 'meaning'), rows)}"


# ------------------------------------------------------------------------------------------------ metrics


def node_metrics_table() -> str:
    """Return the metrics that a node serves to Prometheus."""
    labels = [(each, f" by {each.label}" if each.label else "") for each in READINGS]
    labels += [(each, " by interface and means") for each in MEANS]
    rows = [(f"`carrypost_{each.name}`{by}", each.meaning) for each, by in labels]
    return _table(("metric", "meaning"), rows)


# ----------------------------------------------------------------------------------------------- documents

PARTS: dict[str, Callable[[], str]] = {
    "frames": frame_tables,
    "descriptor": descriptor_table,
    "control items": control_tables,
    "link states": link_machine,
    "exchange states": exchange_machine,
    "copy states": copy_machine,
    "reasons": drop_reasons,
    "claim states": claim_machine,
    "relocation source": source_machine,
    "relocation destination": destination_machine,
    "relocation actions": relocation_actions,
    "constants": constants_table,
    "settings": settings_table,
    "messaging settings": messaging_table,
    "sealing settings": lambda: _config_table(config.settings.Sealing),
    "overlay settings": lambda: _config_table(config.settings.Overlay),
    "overlay authors": overlay_authors_table,
    "limits": limits_table,
    "node settings": lambda: _config_table(node_settings.PlaceSettings),
    "udp settings": lambda: _config_table(node_settings.UdpSettings),
    "record settings": lambda: _config_table(node_settings.RecordSettings),
    "stomp settings": lambda: _config_table(node_settings.StompSettings),
    "openwire settings": lambda: _config_table(node_settings.OpenwireSettings),
    "metrics settings": lambda: _config_table(node_settings.MetricsSettings),
    "trace settings": lambda: _config_table(node_settings.TraceSettings),
    "scenario": scenario_tables,
    "mobility": mobility_tables,
    "contact models": contact_model_tables,
    "lab tables": lab_tables,
    "metrics": family_tables,
    "node metrics": node_metrics_table,
    "conformance": conformance_tables,
    "names of JMS": names_table,
}


def updated(document: str) -> str:
    """Return the document with its marked parts as they should be."""
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found['name']]()}\n\n{found[3]}", document)


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    if unknown := [each for each in arguments if each != "--check"]:
        print(f"{unknown[0]}: not understood; there is --check", file=sys.stderr)
        return 2
    placed: set[str] = set()
    stale = []
    for path in sorted(DOCS.glob("*.md")):
        document = path.read_text(encoding="utf-8")
        placed |= {found["name"] for found in MARKED.finditer(document)}
        wanted = updated(document)
        if wanted != document:
            stale.append(path.name)
            if not arguments:
                path.write_text(wanted, encoding="utf-8")
    for name in sorted(PARTS.keys() - placed):
        print(f"no document has a place for: {name}", file=sys.stderr)
    for name in stale:
        print(f"{name}: not up to date; run tools/documents.py" if arguments else f"{name}: written", file=sys.stderr)
    return int(bool(PARTS.keys() - placed or (arguments and stale)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
