"""Checks of a replay: places, links, copies and layers of a page, at an instant, are those of the record's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.support.browsers import Shown

from carrypost.emu.records import ARROW_SCHEMA
from carrypost.web.runs import Opened

Row = dict[str, Any]
_REACHED = {"publish", "receive", "deliver"}


def rows_of(run: Opened) -> list[Row]:
    source = run.scan.source
    return [row for group in range(len(source.groups)) for row in source.read(group, *ARROW_SCHEMA.names).to_pylist()]


def links_at(run: Opened, t: float) -> list[list[str]]:
    """Return the pairs that are in contact."""
    spans, names = run.scan.spans["contact"], run.scan.names.shown
    pairs = {tuple(sorted((names[spans.a[row]], names[spans.b[row]]))) for row in spans.at(t).tolist()}
    return sorted(map(list, pairs))


def family_of(rows: list[Row], message: str) -> set[str]:
    """Return a message and all that descend from it; they are published later."""
    found = {message}
    for row in rows:
        if row["kind"] == "publish" and dict(row["attrs"]).get("origin") in found:
            found.add(row["message"])
    return found


def reached_at(rows: list[Row], message: str, t: float) -> list[str]:
    """Return the nodes that have received a message or published it."""
    family = family_of(rows, message)
    return sorted(
        {row["node"] for row in rows if row["message"] in family and row["kind"] in _REACHED and row["t"] <= t}
    )


def check_copies(run: Opened, rows: list[Row], page: Shown, message: str, t: float) -> None:
    """Seek, and compare places, links and copies."""
    page.js("message => carrypost.choose({message})", message)
    page.seek(t)
    assert page.js("() => carrypost.links()") == links_at(run, t)
    assert sorted(page.js("() => carrypost.reached()")) == reached_at(rows, message, t)
    if run.places.source == "layout":
        return
    places = page.js("names => names.map(carrypost.place)", run.scan.names.shown)
    for number, shown in enumerate(places):
        wanted = run.places.at(number, t)
        assert (shown is None) == (wanted is None)
        if wanted is not None:
            assert np.allclose(shown, wanted, atol=0.01)


def check_layers(rows: list[Row], page: Shown, t: float) -> None:
    """Seek, and compare homes, loads, islands and paths."""
    past = [row for row in rows if row["t"] <= t]
    page.seek(t)
    homes = {(row["node"], *_client(row)): row["peer"] for row in past if row["kind"] == "home"}
    wanted = sorted([node, peer, " ".join(rest)] for (node, *rest), peer in homes.items() if peer)
    assert sorted(page.js("() => carrypost.homes()")) == wanted
    loads = {row["node"]: row["size"] / 1_000 for row in past if row["kind"] == "load"}
    shown = page.js("() => carrypost.brokers()")
    assert all(loads.get(node, 0) == load for node, load in shown)
    assert loads.keys() <= {node for node, _ in shown}
    node = page.state["node"]
    island: dict[str, int] = {}
    for row in past:
        if row["node"] == node and row["kind"] in {"reach", "unreach"}:
            island.pop(row["peer"], None)
            island |= {row["peer"]: row["hops"]} if row["kind"] == "reach" else {}
    assert dict(page.js("() => carrypost.island()")) == island
    family = family_of(rows, page.state["message"])
    receptions = [row for row in past if row["kind"] == "receive" and row["message"] in family]
    paths = [dict(row["attrs"])["path"].split() for row in receptions if "path" in dict(row["attrs"] or ())]
    assert sorted(page.js("() => carrypost.paths()")) == sorted(paths)


def _client(row: Row) -> list[str]:
    attrs = dict(row["attrs"])
    return [attrs[name] for name in ("channel", "role", "subscription") if name in attrs]
