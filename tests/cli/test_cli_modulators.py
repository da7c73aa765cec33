"""The commands about modulators."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from carrypost.cli import _messages
from carrypost.cli.app import run
from carrypost.jms.destinations import ChannelTopic
from carrypost.log.events import OverlayState
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from carrypost.jms.consumer import Consumer

FOLDER = Path(__file__).parents[2] / "examples" / "modulators"


def test_registered_modulators_are_listed_with_those_of_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import carrypost\n@carrypost.modulator('mine', version=3, cost_us=7)\nclass Mine:\n"
    (tmp_path / "my_modulators.py").write_text(text + "    'Drop all.'\n    def process(self, event): return []\n")
    (tmp_path / "node.toml").write_text('[node]\nplugins = ["my_modulators"]\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["modulators", "--config", str(tmp_path / "node.toml"), "--json"]) == 0
    listed = capsys.readouterr().out
    assert run(["modulators", "--set", "node.plugins=my_modulators", "--json"]) == 0
    assert capsys.readouterr().out == listed
    rows = {each["name"]: each for each in map(json.loads, listed.splitlines())}
    assert rows.keys() >= {"box", "selector", "synthetic", "mine"}
    assert rows["mine"] == {"name": "mine", "version": 3, "cost_us": 7, "reads_payload": True, "does": "Drop all."}


def test_a_module_is_checked_as_a_broker_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wasmtime", reason="WebAssembly modulators need the extra: pip install '.[wasm]'")
    file = str(FOLDER / "every_nth.wat")
    assert run(["modulators", "check", file, "--params", "01", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["broker"] == "runs it"
    assert found["exports"] == "abi, alloc, load, memory, open, process, save"
    assert (found["results"], found["state_bytes"]) == (2, 4)
    assert 0 < found["start_fuel"] < found["event_fuel"] < 100
    assert run(["modulators", "check", file, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["broker"].endswith("open() refused the parameters: it returned 1")
    assert "--params passes some" in err
    assert run(["modulators", "check", str(FOLDER / "sum.wat")]) == 1
    assert "the sample event had 100 zero bytes; --event passes" in capsys.readouterr().err
    assert run(["modulators", "check", file, "--params", "xy"]) == 2
    assert "--params must be pairs of hexadecimal digits" in capsys.readouterr().err
    (tmp_path / "large").write_bytes(b"\0" * 32_769)
    assert run(["modulators", "check", str(tmp_path / "large"), "--json"]) == 1
    out, err = capsys.readouterr()
    assert "more than 32,768 (limits.module_bytes_max)" in json.loads(out)["broker"]
    assert run(["modulators", "check", file, "--params", "01", "--set", "limits.module_bytes_max=10B", "--json"]) == 1
    assert "more than 10 (limits.module_bytes_max)" in json.loads(capsys.readouterr().out)["broker"]
    assert "build the module for size, and strip it" in err
    assert run(["modulators", "check", "/dev/zero"]) == 2
    assert "/dev/zero cannot be read: it has more than 16,777,216 bytes" in capsys.readouterr().err
    (tmp_path / "open.wat").write_text("(module")
    assert run(["modulators", "check", str(tmp_path / "open.wat")]) == 2
    assert "open.wat: invalid module in the WebAssembly text format: expected `)`" in capsys.readouterr().err


def test_a_module_that_does_not_load_its_own_state_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wasmtime", reason="WebAssembly modulators need the extra: pip install '.[wasm]'")
    (tmp_path / "one.bin").write_bytes(bytes(8))
    text = (FOLDER / "sum.wat").read_text()
    (tmp_path / "sum.wat").write_text(text.replace("(i32.ne (local.get $size) (i32.const 8))", "(i32.const 7)"))
    assert run(["modulators", "check", str(tmp_path / "sum.wat"), "--event", str(tmp_path / "one.bin"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["broker"] == "WasmFault: load() refused the state: it returned 7"


class _Watched:
    """A consumer of a channel that is in one state after another, and is then closed."""

    destination = ChannelTopic("flood")

    def __init__(self, *states: OverlayState) -> None:
        self._states = list(states)

    @property
    def closed(self) -> bool:
        return not self._states

    @property
    def overlay(self) -> OverlayState:
        return self._states.pop(0)


def test_sub_reports_trouble_with_the_home_broker_whenever_it_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_messages, "_CHECK_S", 0)
    refused = OverlayState(refusal="modulator", detail="it does not compile")
    served, failed = (
        OverlayState(NodeId("A")),
        OverlayState(NodeId("A"), faults=1, fault="ValueError: odd (x.py, line 3)"),
    )
    more = [OverlayState(NodeId("A"), faults=number) for number in range(2, 25)]
    full = OverlayState(refusal="seats")
    states = OverlayState(), OverlayState(), refused, full, served, served, failed, failed, *more
    asyncio.run(_messages.report_trouble(cast("Consumer", _Watched(*states))))
    said = capsys.readouterr().err.splitlines()
    for line, text in zip(
        said,
        [
            "no home broker yet: check that a node with overlay.broker = true is in reach",
            "a broker refused the modulator: it does not compile",
            "a broker refused: it has no room left for seats",
            "broker A is the home now",
            "the modulator failed with 1 event, and gave no results for it: ValueError: odd (x.py, line 3)",
            "the modulator failed with 10 events, and gave no results for them",
        ],
        strict=True,
    ):
        assert text in line


def test_a_file_that_cannot_be_a_module_is_refused_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "carrypost.overlay.modulators.wasm", None)
    for content, sentence in {b"": "empty.wat is empty", b"hello": "must be a WebAssembly module"}.items():
        (tmp_path / "empty.wat").write_bytes(content)
        assert run(["modulators", "check", str(tmp_path / "empty.wat")]) == 2
        assert sentence in capsys.readouterr().err
    assert run(["modulators", "check", str(FOLDER / "sum.wat")]) == 2
    assert "sum.wat: WebAssembly modulators need wasmtime, which is not installed" in capsys.readouterr().err
