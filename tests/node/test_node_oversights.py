"""Warnings of a starting node about settings that have no effect."""

from __future__ import annotations

import sys

import pytest

from carrypost.config import Settings
from carrypost.node.settings import oversights

ID = "lvhfm4alhcuqy7n6t4to5hv2iu"


def warned(overlay: dict[str, object], security: str = "signed") -> list[str]:
    """Return the warnings of a node with these settings of the overlay."""
    return list(oversights(Settings().replace(island=True, security=security, overlay={"enabled": True} | overlay)))


@pytest.mark.parametrize("name", ["brokers", "authors"])
def test_texts_that_are_no_ids_of_nodes_are_named(name: str) -> None:
    (said,) = warned({name: [ID, "anna"]})
    assert said.startswith(f"overlay.{name}: 'anna' is not the id of a node and has no effect")
    assert warned({name: [ID]}) == warned({name: ["anna"]}, "off") == []


def test_a_broker_that_can_run_no_modules_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "carrypost.overlay.modulators.wasm", None)
    (said,) = warned({"broker": True, "modulators": "any"})
    assert said.startswith('overlay.modulators = "any" has no effect: WebAssembly modulators need wasmtime')
    assert "pip install 'carrypost[wasm]'" in said
    assert warned({"modulators": "any"}) == warned({"broker": True}) == []
    said, _ = warned({"broker": True, "modulators": "trusted"})
    assert said.endswith("list the nodes whose modules this broker runs in overlay.authors")
