"""Random scenarios for the search for faults of messages with recipients: a seed in, the files of a small scenario out.

Presences, contacts, faults and scarce settings are those that the same seed draws without recipients (`draws.draw`).
Messages get recipients, modes and priorities; buffers are small, and hosts carry what is for others.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace

from carrypost.config.document import toml
from carrypost.emu.engine.chance import stream
from carrypost.emu.verify import drawing
from carrypost.emu.verify.drawing import Drawn, Table, of, some
from carrypost.emu.verify.draws import draw

_LISTED = 0.8
"""Share of messages that list their recipients; the others are for all subscribers."""
_ISLANDS = 0.5
"""Share of scenarios with islands. Scenarios in which all nodes must get everything have none, since islands withhold
messages from others."""
_SETTINGS = {"altruistic": of(True), "shares": of(False), "acked_s": of(0.0, 1.0, 30.0)}
_STRATEGY = {"strategy": of("anti-entropy")}
_SCARCE = {"cache_messages_max": of(2, 3, 5, 10)}


def draw_addressed(seed: int) -> Drawn:
    """Return the scenario that belongs to a seed."""
    drawn = draw(seed)
    content: Table = tomllib.loads(drawn.files[drawing.SCENARIO])
    content["name"] = f"{drawing.ADDRESSED}-{seed}"
    names = sorted({line.split(",")[0] for line in drawn.files["nodes.csv"].splitlines()[1:]})
    files = dict(drawn.files)
    if "publish.csv" in files:
        files["publish.csv"] = _listed(files["publish.csv"], names, stream(seed, drawing.ADDRESSED, "script"))
    if _there_throughout(files["nodes.csv"]):
        content["workload"].append(_workload(stream(seed, drawing.ADDRESSED, "workload"), content["duration_s"]))
    settings = content.setdefault("settings", {})
    if not drawn.exact and stream(seed, drawing.ADDRESSED, "island").random() < _ISLANDS:
        settings |= {"island": True}
        if content.get("mode") == "ideal":
            content.setdefault("radio", {})["routes"] = "told"
    settings |= some(seed, "settings", _SETTINGS, 0.5, drawing.ADDRESSED)
    if not settings.get("paper_mode"):
        settings |= some(seed, "strategy", _STRATEGY, 0.5, drawing.ADDRESSED)
    if drawn.exact:
        settings |= {"altruistic": True, "acked_s": 0.0}
    else:
        settings |= some(seed, "scarce", _SCARCE, 0.5, drawing.ADDRESSED)
    return replace(drawn, files=files | {drawing.SCENARIO: toml(content)}, family=drawing.ADDRESSED)


def _listed(script: str, names: list[str], chance: random.Random) -> str:
    """Give messages of a script recipients, modes and priorities."""
    header, *lines = script.splitlines()
    made = [f"{header},recipients,persistent,priority"]
    for line in lines:
        others = [name for name in names if name != line.split(",")[1]]
        many = chance.randrange(1, len(others) + 1) if chance.random() < _LISTED else 0
        recipients = " ".join(chance.sample(others, many))
        made.append(f"{line},{recipients},{chance.choice(('true', 'false', ''))},{chance.choice((0, 4, 5, 9))}")
    return "".join(f"{line}\n" for line in made)


def _there_throughout(nodes: str) -> bool:
    """Return True if a node is always present, so that it can publish."""
    return any(line.split(",")[1:] == ["0.0", ""] for line in nodes.splitlines())


def _workload(chance: random.Random, end_s: float) -> Table:
    return {
        "kind": "addressed", "topic": "addressed", "messages": chance.randrange(1, 20),
        "within_s": chance.choice((0.001, 5.0, end_s)), "recipients": chance.choice((1, 2, 0.3, 0.8)),
        "persistent": chance.choice((0.0, 0.5, 1.0)), "priorities": chance.choice((1, 3, 10)),
        "size": chance.choice((0, 100, 1_000, 20_000)), "lifetime_s": chance.choice((2.0, 10.0, 40.0, "none")),
    }  # fmt: skip
