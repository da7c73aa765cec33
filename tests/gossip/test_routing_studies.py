"""Tools for studies of routing: loads at intervals, lists of messages, and the figures of The ONE."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from carrypost import testing
from carrypost.cli.app import run as command
from carrypost.config import Settings
from carrypost.emu import run
from carrypost.emu.records import table_of
from carrypost.errors import ConfigError
from carrypost.lab.metrics import finished, merge, parts, tables
from carrypost.lab.metrics.families import ONE
from carrypost.log.events import Dropped, Event, Reason
from carrypost.log.record import Kind, Record

SECOND = 1_000_000


def script(tmp_path: Path, workload: str, settings: str = "") -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(f"duration_s = 600\nmode = 'ideal'\n[nodes]\ncount = 5\n{settings}\n[[workload]]\n{workload}")
    return path


# --- loads at intervals ----------------------------------------------------------------------------------------------


def published(path: Path, seed: int = 1) -> list[tuple[float, str, int, str]]:
    table = run(path, seed).table
    columns = [table[name].to_pylist() for name in ("kind", "t", "node", "size", "attrs")]
    rows = [row[1:] for row in zip(*columns, strict=True) if row[0] == "publish"]
    return [(t, node, size, dict(attrs)["recipients"]) for t, node, size, attrs in rows]


def test_messages_come_one_after_the_other_until_the_end(tmp_path: Path) -> None:
    found = published(script(tmp_path, 'kind = "addressed"\nfirst_s = 100\nevery_s = [20, 30]\nsize = [5, 9]'))
    times = [100.0, *(t for t, *_ in found)]
    assert all(20 <= after - before <= 30 for before, after in pairwise(times))
    assert 570 <= times[-1] < 600
    assert {size for _, _, size, _ in found} == {5, 6, 7, 8, 9}
    fixed = published(script(tmp_path, 'kind = "addressed"\nevery_s = 100\nsize = 7'))
    assert [(t, size) for t, _, size, _ in fixed] == [(each * 100.0, 7) for each in range(1, 6)]


def test_a_range_of_sizes_changes_nothing_else(tmp_path: Path) -> None:
    plain = published(script(tmp_path, 'kind = "addressed"\nmessages = 20\nwithin_s = 500\nsize = 7'))
    ranged = published(script(tmp_path, 'kind = "addressed"\nmessages = 20\nwithin_s = 500\nsize = [7, 700]'))
    assert [(t, node, recipients) for t, node, _, recipients in plain] == [
        (t, node, recipients) for t, node, _, recipients in ranged
    ]
    assert len({size for _, _, size, _ in ranged}) > 10


@pytest.mark.parametrize(
    ("workload", "error"),
    [
        ('kind = "addressed"\nevery_s = 5\nmessages = 9', r"workload.0.every_s and workload.0.messages exclude"),
        ('kind = "addressed"\nevery_s = 5\nwithin_s = 9', r"workload.0.every_s and workload.0.within_s exclude"),
        ('kind = "addressed"\nevery_s = [9, 5]', "every_s must have the lowest number first"),
        ('kind = "addressed"\nsize = [9, 5]', "size must have the lowest number first"),
        ('kind = "addressed"\nsize = [9, 5, 6]', "a list of the lowest and the highest"),
        ('kind = "addressed"\nevery_s = 0', "a number from 0.001"),
        ('kind = "broadcast"\nsize = [5, 9]', 'only kind = "addressed" and "random" take a range'),
        ('kind = "addressed"\nsize = [5, 99_000_000]', "message_bytes_max"),
    ],
)
def test_wrong_intervals_and_sizes_say_what_is_right(workload: str, error: str, tmp_path: Path) -> None:
    settings = "[settings.limits]\nmessage_bytes_max = 1_000_000" if "99_" in workload else ""
    with pytest.raises(ConfigError, match=error):
        run(script(tmp_path, workload, settings), 1)


# --- lists of messages -----------------------------------------------------------------------------------------------

CONTACTS = "0.1 CONN 0 1 up\n5 CONN 0 1 down\n6 CONN 1 22 up\n9 CONN 1 22 down\n"
MESSAGES = "# time  ID  size  fromHost  toHost  TTL  isResponse\n3.5000 M1 600 c0 w22 300 N \n7 M2 5 p1 c0 1.5 N\n"


@pytest.fixture
def ingested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str]]:
    (tmp_path / "contacts.txt").write_text(CONTACTS)

    def ingest(messages: str, *more: str) -> tuple[int, str]:
        path = tmp_path / "messages.txt.gz"
        path.write_bytes(gzip.compress(messages.encode()))
        given = ["--contacts", str(tmp_path / "contacts.txt"), *more]
        code = command(
            ["lab", "ingest", str(path), "-f", "one-messages", "--scenario", "s", "-o", str(tmp_path / "out"), *given]
        )
        return code, capsys.readouterr().err

    return ingest


def test_a_list_of_messages_becomes_a_script_with_the_hosts_of_the_contacts(
    ingested: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    assert ingested(MESSAGES)[0] == 0
    assert (tmp_path / "out" / "messages.csv").read_text() == (
        "t,node,message,size,lifetime,recipients\n3.5000,0,M1,600,18000,22\n7,1,M2,5,90,0\n"
    )
    path = tmp_path / "scenario.toml"
    path.write_text(
        "duration_s = 20\nmode = 'ideal'\n[contacts]\nfile = 'contacts.txt'\n[settings]\nstrategy = 'first-contact'\n"
        "[[workload]]\nkind = 'script'\nfile = 'out/messages.csv'\n"
    )
    assert (run(path, 1).table["kind"].to_pylist()).count("deliver") == 1


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ("1 M1 5 c0 w23 300 N", r"messages.txt.gz, line 1: there is no host 'w23' in .*; did you mean 22?"),
        ("1 M1 5 c0", "line 1: expected time ID size fromHost toHost TTL isResponse"),
        ("1 M1 x c0 c1 300 N", "line 1: size must be a whole number"),
        ("1 M1 5 c0 c1 0 N", "line 1: TTL must be a number of minutes above 0"),
        ("x M1 5 c0 c1 5 N", "line 1: time must be"),
        ("1 M1 5 c0 c1 5 N\n2 M1 5 c0 c1 5 N", "line 2: message 'M1' is created on line 1 already"),
    ],
)
def test_bad_lists_of_messages_say_where(
    messages: str, error: str, ingested: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, said = ingested(messages)
    assert code != 0
    assert all(part in said for part in error.replace("?", "").split(".*"))
    assert not (tmp_path / "out").exists()


def test_a_list_of_messages_takes_no_other_options(ingested: Callable[..., tuple[int, str]]) -> None:
    assert "takes one file, and no option" in ingested(MESSAGES, "--unsorted")[1]


# --- half-received messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_a_half_received_message_is_kept_after_its_contact_only_if_asked_for(keep: bool) -> None:
    dropped: list[Reason] = []

    def note(_t: float, _node: str, event: Event) -> None:
        if isinstance(event, Dropped):
            dropped.append(event.reason)

    with testing.network("a", "b", altruistic=True, keep_partials=keep, rate_bytes_per_s=20_000) as net:
        net.watch(note)
        net.publish("a", "news", testing.Blank(200_000), label="m")
        net.subscribe("b", "news")
        for _ in range(3):
            net.link("a", "b")
            net.advance(8)
            net.unlink("a", "b")
            net.advance(30)
        assert len(net.deliveries("b")) == keep
        assert dropped == ([] if keep else [Reason.INCOMPLETE] * 3)


@pytest.mark.parametrize("keep", [True, False])
def test_a_half_received_message_is_kept_after_a_crash_only_if_asked_for(keep: bool) -> None:
    with testing.network("a", "b", altruistic=True, keep_partials=keep, rate_bytes_per_s=20_000) as net:
        net.publish("a", "news", testing.Blank(200_000), label="m")
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(8)
        net.kill("b")
        net.unlink("a", "b")
        net.restart("b")
        assert net.host("b").overview().messages == keep
        net.advance(30)
        net.link("a", "b")
        net.advance(6)
        assert len(net.deliveries("b")) == keep


# --- The ONE's figures -----------------------------------------------------------------------------------------------


def record() -> Record:
    """Return a record by hand: four messages for z, of which two arrive, and one for all."""
    made = Record("r")
    made.add(Kind.RUN, 0, "", attrs={"seed": "1"})
    for number, message in enumerate("klmn"):
        made.add(Kind.PUBLISH, number * SECOND, "a", message=message, source="a", size=5, attrs={"recipients": "z"})
    made.add(Kind.PUBLISH, 4 * SECOND, "a", message="all", source="a", size=5)
    made.add(Kind.REFUSE, 5 * SECOND, "a", detail="no-room", attrs={"recipients": "z"})
    for t, node, message, hops in ((10, "b", "k", 1), (20, "z", "k", 2), (30, "z", "l", 1), (31, "b", "all", 1)):
        made.add(Kind.RECEIVE, t * SECOND, node, peer="a", message=message, source="a", size=5, hops=hops)
        if node == "z":
            made.add(Kind.DELIVER, t * SECOND, node, message=message, source="a", size=5)
            made.add(Kind.DROP, t * SECOND, node, message=message, source="a", size=5, detail="purged")
    for t, node, message, reason in (
        (40, "b", "k", "evicted"), (50, "a", "m", "expired"), (60, "b", "m", "incomplete"), (70, "a", "n", "forwarded"),
        (80, "b", "all", "evicted"),
    ):  # fmt: skip
        made.add(Kind.DROP, t * SECOND, node, message=message, source="a", size=5, detail=reason)
    return made


FIGURES = {
    "run": "r", "created": 5, "relayed": 3, "dropped": 2, "removed": 1, "delivered": 2, "delivery_prob": 0.4,
    "overhead_ratio": 0.5, "latency_avg": 24.5, "latency_med": 29.0, "hopcount_avg": 1.5, "hopcount_med": 2,
    "buffertime_avg": (30 + 48 + 67) / 3, "buffertime_med": 48.0,
}  # fmt: skip


def test_figures_are_those_of_the_ones_report() -> None:
    (row,) = tables("r", table_of(record()), [ONE])["one"].to_pylist()
    assert row == pytest.approx(FIGURES)


def test_figures_of_slices_are_those_of_the_whole() -> None:
    table = table_of(record())
    about = [message in ("k", "m", None) for message in table["message"].to_pylist()]
    slices = [parts(table.filter(chosen), [ONE]) for chosen in (about, [not each for each in about])]
    (row,) = finished("r", merge(*slices), [ONE])["one"].to_pylist()
    assert row == pytest.approx(FIGURES)


def test_a_run_without_messages_has_a_row_without_ratios() -> None:
    empty = Record("r")
    empty.add(Kind.RUN, 0, "")
    (row,) = tables("r", table_of(empty), [ONE])["one"].to_pylist()
    assert (row["created"], row["delivery_prob"], row["latency_avg"], row["hopcount_med"]) == (0, None, None, None)


def test_publications_that_a_full_buffer_refuses_are_in_the_record(tmp_path: Path) -> None:
    settings = "[settings]\nstrategy = 'direct'\ncache_bytes_max = 2_000"
    path = script(tmp_path, 'kind = "addressed"\nevery_s = 60\nsize = 3_000', settings)
    table = run(path, 1).table
    refused = [
        (detail, dict(attrs)["recipients"])
        for kind, detail, attrs in zip(*(table[name].to_pylist() for name in ("kind", "detail", "attrs")), strict=True)
        if kind == "refuse"
    ]
    assert len(refused) == 9
    assert {detail for detail, _ in refused} == {"no-room"}
    (row,) = tables("r", table, [ONE])["one"].to_pylist()
    assert (row["created"], row["relayed"], row["delivered"]) == (9, 0, 0)


def test_defaults_are_those_of_the_one() -> None:
    found = Settings()
    assert (found.spray_copies, found.spray_binary, found.keep_partials) == (6, True, True)
    assert (found.prophet_p_init, found.prophet_beta, found.prophet_gamma, found.prophet_unit_s) == (
        0.75,
        0.25,
        0.98,
        30,
    )
