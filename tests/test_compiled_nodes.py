"""Two real nodes, one compiled and one pure, which exchange everything in both directions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.loopback import apart

from carrypost.extensions import PURE
from tools import compiled

PATIENCE_S = 90
COUNT = 12
PROGRAM = f"""
import sys
from carrypost.extensions import BUILD
from carrypost.sync import ConnectionFactory, InitialContext

own, other, size = sys.argv[1], sys.argv[2], 60_000
factory = ConnectionFactory(data=own, client_id=own, announce_s_min=0.2, announce_s_max=0.5)
with (
    factory.create_context() as ctx,
    ctx.create_durable_consumer("topic/village", "inbox") as talk,
    ctx.create_consumer(ctx.declare_queue("for-" + own)) as letters,
):
    theirs = InitialContext(ctx).lookup("queue/for-" + other, timeout={PATIENCE_S})
    for number in range({COUNT}):
        ctx.send("topic/village", f"{{own}} {{number}}" + " " * (number % 3 * size), time_to_live=600)
        ctx.send(theirs, f"{{own}} {{number}}", time_to_live=600)
    heard, letter = [], []
    while len(heard) < {COUNT}:
        text = talk.receive(timeout={PATIENCE_S}).text.strip()
        heard += [text] if text.startswith(other) else []
    while len(letter) < {COUNT}:
        letter.append(letters.receive(timeout={PATIENCE_S}).text)
    print(BUILD, *sorted(heard), *sorted(letter), sep="|", flush=True)
    sys.stdin.read()
"""


def test_a_compiled_and_a_pure_node_exchange_topics_and_queues_both_ways(tmp_path: Path) -> None:
    if not compiled.MANIFEST.exists():
        pytest.skip("nothing is compiled here: make compiled")
    udp = {f"CARRYPOST_UDP_{name.upper()}": json.dumps(value) for name, value in apart().items()}
    kept = {name: value for name, value in os.environ.items() if name != PURE} | udp
    names = ("anna", "bert")
    nodes = [
        subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-c", PROGRAM, own, other],
            cwd=tmp_path, env=kept | ({PURE: "1"} if own == "bert" else {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for own, other in (names, names[::-1])
    ]  # fmt: skip
    try:
        said = [(each.stdout.readline() if each.stdout else "").strip().split("|") for each in nodes]
    finally:
        for each in nodes:
            each.communicate(timeout=PATIENCE_S)
    if said[0][0] == "pure":
        pytest.skip("what was compiled here is out of date: make compiled")
    assert [each[0] for each in said] == ["compiled", "pure"]
    for (_, *found), other in zip(said, names[::-1], strict=True):
        assert found == sorted(f"{other} {number}" for number in range(COUNT)) * 2
