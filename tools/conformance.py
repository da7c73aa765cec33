"""The table of JMS conformance: what each requirement became here, and which tests show it.

`docs/conformance.md` is made of it by `tools/documents.py`. A row without a test needs a reason.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

TESTS = Path(__file__).resolve().parents[1] / "tests"
Verdict = Literal["exact", "adapted", "substituted", "not offered"]
VALUES = "the messages and selectors are those of `Context`"
NODE = "this is up to the node, whichever API a program uses"
SIMPLIFIED = "JMS has it in the simplified API alone"


class Row(NamedTuple):
    """One requirement, and its fulfilment here."""

    number: int
    feature: str
    section: str
    verdict: Verdict = "exact"
    why: str = ""
    """Difference from what JMS requires; empty where there is none."""
    apart: str = ""
    """Reason why no test shows it in the classic API; empty where one does."""


SECTIONS: dict[str, tuple[Row, ...]] = {
    "Header fields": (
        Row(1, "JMSDestination", "3.4.1"),
        Row(2, "JMSDeliveryMode", "3.4.2, 7.7"),
        Row(
            3,
            "JMSMessageID",
            "3.4.3",
            "adapted",
            "Always present: copies are recognized by it. The hint to leave it out is ignored.",
        ),
        Row(4, "JMSTimestamp", "3.4.4"),
        Row(5, "JMSCorrelationID", "3.4.5"),
        Row(6, "JMSReplyTo", "3.4.6"),
        Row(7, "JMSRedelivered", "3.4.7"),
        Row(8, "JMSType", "3.4.8"),
        Row(
            9,
            "JMSExpiration",
            "3.4.9, 7.8",
            "adapted",
            "A lifetime of 0 means the node's default, not for ever; the header shows it.",
        ),
        Row(10, "JMSPriority", "3.4.10", "adapted", "It also decides which copies carriers keep and send first."),
        Row(
            11,
            "JMSDeliveryTime (2.0)",
            "3.4.13",
            "adapted",
            "A delayed message travels at once and is held where it is received.",
        ),
        Row(12, "fields that sending overwrites", "3.4.11"),
        Row(13, "values that administrators override", "3.4.12"),
        Row(
            14,
            "clocks that differ",
            "–",
            "adapted",
            "A message has its deadline and its remaining life; the earlier one counts.",
            NODE,
        ),
    ),
    "Properties": (
        Row(15, "names", "3.5.1", apart=VALUES),
        Row(
            16,
            "types",
            "3.5.2",
            "adapted",
            "`properties[name] = value` infers the type; typed setters keep theirs.",
            VALUES,
        ),
        Row(17, "read-only on receipt", "3.5.3"),
        Row(18, "conversions", "3.5.4", apart=VALUES),
        Row(19, "object properties", "3.5.5", apart=VALUES),
        Row(20, "enumeration", "3.5.6", apart=VALUES),
        Row(21, "clearing", "3.5.7", apart=VALUES),
        Row(22, "missing properties", "3.5.8", apart=VALUES),
        Row(23, "JMSX properties", "3.5.9"),
        Row(24, "properties of the provider", "3.5.10"),
        Row(25, "JMSXDeliveryCount (2.0)", "3.5.11"),
    ),
    "Selectors": (
        Row(26, "when they are checked", "3.8.1.1"),
        Row(
            27,
            "where they are applied",
            "3.8.1",
            "adapted",
            "Carriers may apply them earlier; the receiver checks again.",
        ),
        Row(28, "strings", "3.8.1.1", apart=VALUES),
        Row(29, "exact numbers", "3.8.1.1", apart=VALUES),
        Row(30, "approximate numbers", "3.8.1.1", apart=VALUES),
        Row(31, "booleans", "3.8.1.1", apart=VALUES),
        Row(32, "identifiers", "3.8.1.1", apart=VALUES),
        Row(33, "header fields", "3.8.1.1", apart=VALUES),
        Row(34, "the delivery mode as text", "3.8.1.3", apart=VALUES),
        Row(35, "no conversion of properties", "3.8.1.1", apart=VALUES),
        Row(36, "comparisons", "3.8.1.1", apart=VALUES),
        Row(37, "order of strings and booleans", "3.8.1.1", apart=VALUES),
        Row(38, "arithmetic", "3.8.1.1", apart=VALUES),
        Row(39, "BETWEEN", "3.8.1.1", apart=VALUES),
        Row(40, "IN", "3.8.1.1", apart=VALUES),
        Row(41, "LIKE and ESCAPE", "3.8.1.1", apart=VALUES),
        Row(42, "IS NULL", "3.8.1.1", apart=VALUES),
        Row(43, "AND, OR and NOT of unknown", "3.8.1.2", apart=VALUES),
        Row(44, "precedence", "3.8.1.1", apart=VALUES),
        Row(45, "float properties", "–", apart=VALUES),
        Row(
            46,
            "JMSX properties that are set on receipt",
            "3.5.9",
            "adapted",
            "Refused: they do not exist when messages are selected.",
        ),
    ),
    "Bodies": (
        Row(47, "the types of messages", "3.11"),
        Row(48, "conversions of streams and maps", "3.11.3", apart=VALUES),
        Row(49, "writing, reset and reading", "3.11.2", apart=VALUES),
        Row(50, "clear_body", "3.11.1", apart=VALUES),
        Row(51, "values are copied", "3.12", apart=VALUES),
        Row(52, "a sent message may be changed", "3.9"),
        Row(53, "a redelivery is pristine", "3.10"),
        Row(54, "get_body (2.0)", "API", apart=VALUES),
        Row(
            55,
            "ObjectMessage",
            "3.11",
            "adapted",
            "Objects of registered classes alone: bytes of strangers never run code.",
            VALUES,
        ),
        Row(56, "messages of other implementations", "3.12", apart=VALUES),
    ),
    "Connections": (
        Row(
            57,
            "factories",
            "5.3, 6.1",
            "adapted",
            "There are no users and passwords: the permissions of the node's folder decide.",
        ),
        Row(58, "client id", "6.1.2", "adapted", "Exclusive on one node, not in the whole network."),
        Row(59, "start and stop", "6.1.4–5"),
        Row(60, "close", "6.1.8"),
        Row(61, "stop and close in a listener", "6.1.5, 6.1.8"),
        Row(62, "ConnectionMetaData", "6.1.6"),
        Row(63, "ExceptionListener", "6.1.7", "adapted", "That no other node is near is no problem, and not reported."),
        Row(64, "objects that tasks share", "2.14"),
    ),
    "Sessions": (
        Row(65, "acknowledgement modes", "6.2, 6.2.10"),
        Row(66, "AUTO_ACKNOWLEDGE", "6.2.10"),
        Row(67, "CLIENT_ACKNOWLEDGE", "6.2.10"),
        Row(68, "DUPS_OK_ACKNOWLEDGE", "6.2.10"),
        Row(69, "recover", "6.2.10"),
        Row(70, "no second copy of an acknowledged message", "6.2.11"),
        Row(71, "no duplicate production", "6.2.12"),
        Row(72, "transactions", "6.2.7"),
        Row(
            73,
            "XA, connection consumers, session listeners",
            "6.2.8, 11–13",
            "not offered",
            "Optional, and for application servers. Create several sessions instead.",
        ),
        Row(
            74,
            "order of messages",
            "6.2.9",
            "adapted",
            "Kept on one node. Elsewhere a message that comes too late is flagged, unless its topic has an order.",
        ),
        Row(75, "listeners of a session, one at a time", "6.2.13–14"),
        Row(76, "listeners and receive in one session", "6.2.5"),
        Row(77, "unacknowledged messages of a closed session", "6.2"),
    ),
    "Queues": (
        Row(
            78, "one consumer per message", "4.1.2", "adapted", "One node manages a queue, and its name has that node."
        ),
        Row(
            79,
            "a receiver elsewhere that is gone",
            "–",
            "adapted",
            "Nobody else gets its messages, unless the queue has leases.",
            NODE,
        ),
        Row(80, "receive", "8.5", "adapted", "Of a queue elsewhere, `receive_no_wait` sees what has arrived already."),
        Row(81, "QueueBrowser", "4.1.6", "exact", ""),
        Row(
            82,
            "temporary queues and topics",
            "4.1.5, 6.2.2",
            "adapted",
            "Late replies to one that is gone are dropped.",
        ),
        Row(83, "creating queues", "4.1.3", "adapted", "A program may declare one; JMS leaves it to administrators."),
        Row(
            84,
            "a queue is always there",
            "4.1.8",
            "adapted",
            "Messages wait with their carriers until the manager is met, or they expire.",
        ),
        Row(
            85,
            "QueueRequestor and TopicRequestor",
            "4.1.7, 4.2.10",
            "substituted",
            "A request has a deadline: its reply may never come.",
        ),
    ),
    "Reliability": (
        Row(
            86,
            "PERSISTENT: once and only once",
            "7.7, 9.1",
            "substituted",
            "At most once, with receipts for the sender: a network that is never whole allows no more.",
        ),
        Row(87, "NON_PERSISTENT", "7.7"),
        Row(
            88,
            "which messages a full node keeps",
            "–",
            "adapted",
            "A function of the program decides; JMS says nothing of it.",
            NODE,
        ),
        Row(
            89,
            "acknowledged copies are dropped everywhere",
            "–",
            "adapted",
            "JMS knows no copies; `tests/gossip/test_acked.py` shows it.",
            NODE,
        ),
    ),
    "Topics": (
        Row(
            90,
            "subscriptions that are not durable",
            "4.2.2, 8.3.1",
            "adapted",
            "They may also get older copies; a setting makes them durable or refuses them.",
        ),
        Row(91, "durable subscriptions", "8.3.3"),
        Row(92, "shared subscriptions (2.0)", "8.3.2, 8.3.4", "adapted", "Among the programs of one node."),
        Row(93, "unsubscribe", "8.3.3–4"),
        Row(94, "noLocal", "8.3.1, 8.3.3"),
        Row(95, "names of subscriptions", "4.2.4"),
        Row(
            96,
            "topics of one name",
            "–",
            "adapted",
            "Topics need no administrator: the same name is the same topic everywhere.",
        ),
        Row(97, "hierarchies and wildcards", "4.2.6", "adapted", "`a.b.*` and `a.>`, which JMS leaves to providers."),
    ),
    "Simplified API, sending, errors, naming": (
        Row(98, "JMSContext (2.0)", "2.8, 7.10, 6.1.4", apart=SIMPLIFIED),
        Row(99, "properties of a JMSProducer (2.0)", "7.5–7.6", apart=SIMPLIFIED),
        Row(100, "CompletionListener (2.0)", "7.3"),
        Row(101, "receiveBody (2.0)", "8.6", apart=SIMPLIFIED),
        Row(102, "listeners that raise", "8.7"),
        Row(103, "exceptions, and calls of the wrong domain", "10.3, 9.2"),
        Row(
            104,
            "JNDI",
            "5.1",
            "adapted",
            "Each device has its own directory; advertisements expire unless they are renewed.",
        ),
    ),
}
ROWS = tuple(row for rows in SECTIONS.values() for row in rows)


@cache
def shown() -> dict[int, tuple[str, ...]]:
    """Return, by row, the ways of using carrypost in which tests named after it, or Java programs, show it."""
    found: dict[int, dict[str, None]] = {row.number: {} for row in ROWS}
    for path in sorted((TESTS / "jms").glob("test_jms_rows_*.py")):
        module = importlib.import_module(f"tests.jms.{path.stem}")
        ways = ("context", "attached") if hasattr(module, "pytestmark") else ("context",)
        _add(found, module, dict.fromkeys(found, ways))
    rows = importlib.import_module("tests.support.classic_rows")
    _add(found, rows, {row: ("classic", "blocking", "attached")[: 3 if row in rows.ATTACHED else 2] for row in found})
    for row in {row for named in java_rows().values() for row in named} & found.keys():
        found[row]["java"] = None
    order = ("context", "classic", "blocking", "attached", "java")
    return {row: tuple(way for way in order if way in ways) for row, ways in found.items()}


def java_rows() -> dict[str, tuple[int, ...]]:
    """Return, by the name of each Java program of the tests, the rows that it says it asserts."""
    rows = importlib.import_module("tests.daemon.test_openwire_java").ROWS
    return {program.__name__: named for program, named in rows.items()}


def _add(found: dict[int, dict[str, None]], module: object, ways: Mapping[int, tuple[str, ...]]) -> None:
    for name in vars(module):
        if match := re.match(r"test_rows?_((?:\d+_(?:and_)?)+)", name):
            for row in map(int, re.findall(r"\d+", match[1])):
                found[row].update(dict.fromkeys(ways[row]))


def faults() -> list[str]:
    """Return what is missing: rows, and tests or reasons of rows."""
    missing = [f"row {number} is not in the table" for number in set(range(1, 105)) - {row.number for row in ROWS}]
    for program, named in java_rows().items():
        unknown = sorted(set(named) - {row.number for row in ROWS})
        missing += [f"the Java program {program!r} names row {number}, which is not in the table" for number in unknown]
    for row in ROWS:
        ways = shown()[row.number]
        if "classic" in ways and row.apart:
            missing.append(f"row {row.number} has a test and a reason why it has none")
        if "classic" not in ways and not row.apart:
            missing.append(f"row {row.number} has neither a test in the classic API nor a reason")
        if row.verdict != "exact" and not row.why:
            missing.append(f"row {row.number} does not say why it is {row.verdict}")
    return missing


def conformance_tables() -> str:
    """Return a table per part of JMS; raises if a row has neither a test nor a reason."""
    if found := faults():
        raise ValueError("; ".join(found))
    parts = []
    for title, rows in SECTIONS.items():
        lines = [
            f"### {title}",
            "",
            "| row | requirement | JMS § | here | difference | shown in |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            ways = ", ".join(shown()[row.number]) or "–"
            note = f"; {row.apart}" if row.apart else ""
            cells = (str(row.number), row.feature, row.section, row.verdict, row.why or "–", ways + note)
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
