"""Scenarios for tests, written into a folder; and their records, as rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from carrypost import emu
from carrypost.emu.scenario import Scenario

Rows = list[dict[str, Any]]

SCRIPT = """
[[workload]]
kind = "script"
file = "publish.csv"
"""
BROADCAST = """
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 20
size = 1000
lifetime_s = 60
"""
BROKERS = """
mode = "ideal"
[nodes]
file = "nodes.csv"
[contacts]
file = "contacts.csv"
[radio]
routes = "told"
[[nodes.group]]
name = "brokers"
names = ["A", "B", "C"]
[nodes.group.settings.overlay]
broker = true
[settings]
island = true
[settings.overlay]
enabled = true
update_s = 10
"""
"""An overlay with three brokers; further lines belong to its settings."""


def csv(folder: Path, name: str, header: str, rows: Iterable[str]) -> None:
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def contacts(folder: Path, *rows: str) -> str:
    """Return a file of contacts `a,b,start,end`, and the table that names it."""
    csv(folder, "contacts.csv", "a,b,start,end", rows)
    return '[contacts]\nfile = "contacts.csv"\n'


def nodes(folder: Path, *rows: str) -> str:
    csv(folder, "nodes.csv", "node,join,leave", rows)
    return '[nodes]\nfile = "nodes.csv"\n'


def script(folder: Path, *rows: str) -> str:
    """Return a file of publications `t,node,message,size,lifetime`, and the workload that names it."""
    csv(folder, "publish.csv", "t,node,message,size,lifetime", rows)
    return SCRIPT


def scenario(folder: Path, *tables: str, duration_s: float = 100, mode: str = "faithful", top: str = "") -> Scenario:
    text = f'name = "scene"\nduration_s = {duration_s}\nmode = "{mode}"\n{top}\n' + "\n".join(tables)
    return Scenario.parse(text, folder)


def rows(made: Scenario, seed: int | str = 1) -> Rows:
    found: Rows = emu.run(made, seed).table.to_pylist()
    for row in found:
        row["attrs"] = dict(row["attrs"] or {})
    return found


def of(found: Rows, kind: str, **values: object) -> Rows:
    return [row for row in found if row["kind"] == kind and all(row[name] == value for name, value in values.items())]


def receptions(found: Rows) -> set[tuple[str, str]]:
    return {(row["message"], row["node"]) for row in of(found, "receive")}
