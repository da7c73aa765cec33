"""The page of the campus: the paper's words beside our figures, for a topic and both kinds of queues."""

from __future__ import annotations

from pathlib import Path

from tests.support.lab_pages import Reader

from carrypost.cli.app import run as command
from carrypost.lab.campaign.reproduce import RECIPES, scenario_file

_SMALL = "{ duration_s = 600, 'contacts.people' = 4, 'contacts.flats' = [], 'workload.0.messages' = 9"


def test_the_page_shows_topic_and_queues_beside_the_paper(tmp_path: Path) -> None:
    settings = RECIPES["campus"].settings
    assert [each.changes.get("workload.0.queue") for each in settings] == [None, "third", "recipient"]
    (tmp_path / "campus.toml").write_text(scenario_file("campus").read_text(encoding="utf-8"))
    lines = ['scenarios = ["campus.toml"]', "seeds = [1]"]
    for each in settings:
        queue = each.changes.get("workload.0.queue", "none")
        lines += ["[[settings]]", f'name = "{each.name}"', f"set = {_SMALL}, 'workload.0.queue' = '{queue}' }}"]
    (tmp_path / "campaign.toml").write_text("\n".join(lines) + "\n")
    out = str(tmp_path / "out")
    assert command(["lab", "campaign", str(tmp_path / "campaign.toml"), "--engine", "local", "--out", out]) == 0
    assert command(["lab", "metrics", out, "--engine", "local"]) == 0
    assert command(["lab", "report", out, "--engine", "local", "--out", str(tmp_path / "page.html")]) == 0
    page = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.row("Contacts and neighbours", "contacts")[1] == "5,729"
    assert page.row("Contacts and neighbours", "time with at most two")[1] == "almost 80 %"
    heads = ["", "paper", "topic", "queue of a third manager", "queue of the recipient"]
    assert page.row("Messages delivered", "") == heads
    assert page.row("Messages delivered", "in less than 1 h")[1:] == ["most", "100 %", "100 %", "100 %"]
    assert len(page.tables["The way of one message"]) == 1 + 3
    assert page.row("Verdict", "messages to a queue take longer than those to a topic")[2] in {"yes", "no"}
    for figure in ("6b", "7", "8a", "8b", "9", "10"):
        assert f"the paper's Figure {figure}." in page.text
    for told in (
        "“hosted on the smartphone of the recipient”",
        "These runs last 10 min in place of 40 h",
        "fitted to the sums",
    ):
        assert told in page.text
