"""Emulated applications that publish for some of the hosts: by chance (`addressed`) and by scripts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.support import emulated

from carrypost import emu
from carrypost.emu.engine.applications import Publication
from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.emu.verify.invariants import check
from carrypost.errors import CarrypostError
from carrypost.lab.metrics import families, tables

EVERYBODY = '[mobility]\nmodel = "community"\ncount = 12\nclouds = 3\n[radio]\nrange_m = 200\n'
ADDRESSED = '[[workload]]\nkind = "addressed"\nmessages = 300\nfirst_s = 5\nwithin_s = 20\n'


def drawn(*keys: str, seed: int = 1) -> list[Publication]:
    made = Scenario.parse("duration_s = 60\n" + EVERYBODY + ADDRESSED + "".join(f"{key}\n" for key in keys))
    return read_inputs(made, seed).scripts[0]


def test_messages_modes_priorities_and_recipients_are_drawn_as_the_table_says() -> None:
    found = drawn("recipients = 2", "persistent = 0.5", "priorities = 3", "size = 7", "lifetime_s = 9")
    assert len(found) == 300
    times = [each.t_us for each in found]
    assert times == sorted(times)
    assert 5_000_000 <= times[0] < 6_000_000
    assert 24_000_000 < times[-1] < 25_000_000
    assert {(each.size, each.lifetime_us, each.message) for each in found} == {(7, 9_000_000, "")}
    assert all(len(set(each.recipients)) == 2 and each.node not in each.recipients for each in found)
    counts = Counter(name for each in found for name in (each.node, *each.recipients))
    assert len(counts) == 12
    assert max(counts.values()) < 2 * min(counts.values())
    assert 0.4 < sum(each.persistent for each in found) / 300 < 0.6
    assert set(Counter(each.priority for each in found)) == {0, 1, 2}
    assert found == drawn("recipients = 2", "persistent = 0.5", "priorities = 3", "size = 7", "lifetime_s = 9")
    assert found != drawn("recipients = 2", "persistent = 0.5", "priorities = 3", "size = 7", "lifetime_s = 9", seed=2)


@pytest.mark.parametrize(("said", "many"), [("0.8", 10), ("0.001", 1), ("0.999", 11), ("11", 11), ("1", 1)])
def test_recipients_below_one_are_a_share_of_the_hosts(said: str, many: int) -> None:
    assert {len(each.recipients) for each in drawn(f"recipients = {said}")} == {many}


def test_another_number_of_recipients_leaves_all_else_as_it_was() -> None:
    one, most = drawn("recipients = 1"), drawn("recipients = 0.8")
    assert [each._replace(recipients=()) for each in one] == [each._replace(recipients=()) for each in most]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("recipients = 1.5", "line 13: workload.0.recipients must be a whole number of hosts or, below 1, a share"),
        ("recipients = 12", "workload.0.recipients must be at most 11 (there are 12 hosts), not 12"),
        ("recipients = 0", "line 13: workload.0.recipients must be a number from"),
        ("ordering = 'causal'", "line 13: workload.0.ordering: messages with recipients cannot be ordered"),
        ("priorities = 11", "line 13: workload.0.priorities must be a whole number from 1 to 10"),
        ("file = 'x.csv'", "workload.0 has a file, which requires kind = "),
        ("[settings.limits]\nrecipients_max = 5\n[[workload]]\nkind='addressed'\nrecipients = 6",
         "workload.1.recipients must be at most 5 (settings.limits.recipients_max), not 6"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_what_to_do(keys: str, said: str) -> None:
    with pytest.raises(CarrypostError) as raised:
        drawn(keys)
    assert said in str(raised.value)


def test_one_host_alone_and_no_host_at_all_have_nobody_to_write_to(tmp_path: Path) -> None:
    made = emulated.scenario(tmp_path, "[nodes]\ncount = 1\n", ADDRESSED)
    with pytest.raises(CarrypostError, match=r"workload\.0: .* there is only one host"):
        emu.run(made)
    made = emulated.scenario(tmp_path, emulated.nodes(tmp_path, "a,50,", "b,60,"), ADDRESSED)
    with pytest.raises(CarrypostError, match=r"workload\.0: no host is present at [0-9.]+ s to publish"):
        emu.run(made)


def test_messages_are_delivered_at_their_recipients_and_counted_there() -> None:
    text = 'name = "x"\nduration_s = 90\nmode = "ideal"\n' + EVERYBODY + ADDRESSED.replace("300", "40")
    text += "recipients = 4\nsize = 10\n[settings]\naltruistic = true\n"
    table = emu.run(Scenario.parse(text)).table
    assert check(table) == []
    found = table.to_pylist()
    listed = {
        row["message"]: set(dict(row["attrs"])["recipients"].split()) for row in found if row["kind"] == "publish"
    }
    assert {len(each) for each in listed.values()} == {4}
    delivered = {(row["message"], row["node"]) for row in found if row["kind"] == "deliver"}
    received = {(row["message"], row["node"]) for row in found if row["kind"] == "receive"}
    assert delivered == {each for each in received if each[1] in listed[each[0]]}
    made = tables("x/default/1", table, [families.DELIVERY, families.FLOOD])
    assert sum(made["delivery"]["recipients"].to_pylist()) == 4 * 40
    assert sum(made["delivery"]["delivered"].to_pylist()) == len(delivered) == made["flood"]["cumulative"][-1].as_py()
    assert 0 < len(delivered) < len(received)


def script(folder: Path, *rows: str) -> str:
    emulated.csv(folder, "publish.csv", "t,node,message,size,recipients,persistent,priority", rows)
    return emulated.SCRIPT


def test_a_script_names_recipients_mode_and_priority(tmp_path: Path) -> None:
    tables_ = (
        emulated.contacts(tmp_path, "a,b,10,30", "a,c,10,30"),
        script(tmp_path, "1,a,m,10,c d,true,9", "2,a,n,10,,,"),
        "[settings]\naltruistic = true\n",
    )
    found = emulated.rows(emulated.scenario(tmp_path, *tables_))
    published = {row["message"]: row["attrs"] for row in emulated.of(found, "publish")}
    names = ("mode", "priority", "recipients")
    assert [published["m"].get(name) for name in names] == ["persistent", "9", "c d"]
    assert [published["n"].get(name) for name in names] == ["non-persistent", "4", None]
    assert emulated.receptions(found) == {("m", "b"), ("m", "c"), ("n", "b"), ("n", "c")}
    delivered = {(row["message"], row["node"]) for row in emulated.of(found, "deliver")}
    assert delivered == {("m", "c"), ("n", "a"), ("n", "b"), ("n", "c")}
    assert {row["node"] for row in emulated.of(found, "join")} == {"a", "b", "c", "d"}  # A script may name others.


def test_recipients_are_called_by_their_names_also_where_they_sign_and_have_not_joined_yet(tmp_path: Path) -> None:
    tables_ = (
        emulated.nodes(tmp_path, "a,0,", "b,20,"),
        emulated.contacts(tmp_path, "a,b,30,60"),
        script(tmp_path, "1,a,m,10,b,true,"),
        '[settings]\nsecurity = "signed"\nlifetime_s_default = 600\nlifetime_s_max = 3600\n',
    )
    found = emulated.rows(emulated.scenario(tmp_path, *tables_))
    (published,) = emulated.of(found, "publish")
    assert published["attrs"]["recipients"] == "b"
    assert [row["node"] for row in emulated.of(found, "deliver")] == ["b"]


def test_a_recipient_that_lost_its_store_is_written_to_under_its_new_name(tmp_path: Path) -> None:
    crash = '[[faults.event]]\nt = 10\nnode = "b"\nkind = "crash-lost"\nduration_s = 5\n'
    tables_ = (
        emulated.nodes(tmp_path, "a,0,", "b,0,"),
        emulated.contacts(tmp_path, "a,b,30,60"),
        script(tmp_path, "1,a,m,10,b,,", "20,a,n,10,b,,"),
        crash,
    )
    found = emulated.rows(emulated.scenario(tmp_path, *tables_))
    assert [row["attrs"]["recipients"] for row in emulated.of(found, "publish")] == ["b", "b.2"]
    assert {(row["message"], row["node"]) for row in emulated.of(found, "deliver")} == {("n", "b.2")}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,a,m,10,x,,", "publish.csv, line 2: recipients: there is no node 'x'"),
        ("1,a,m,10,b a,,", "publish.csv, line 2: recipients must not include the author, 'a': leave it out"),
        ("1,a,m,10,b b,,", "publish.csv, line 2: recipients name 'b' twice"),
        ("1,a,m,10,b c,,", "publish.csv, line 2: recipients must be at most 1 (recipients_max), not 2"),
        ("1,a,m,10,,maybe,", "publish.csv, line 2: persistent must be true, false or empty, not 'maybe'"),
        ("1,a,m,10,,,10", "publish.csv, line 2: priority must be a whole number from 0 to 9, not 10"),
        ("1,a,m,10,,,2.5", "publish.csv, line 2: priority must be a whole number from 0 to 9, not 2.5"),
    ],
)
def test_a_bad_script_is_named_with_file_and_line(tmp_path: Path, row: str, said: str) -> None:
    named = emulated.nodes(tmp_path, "a,0,", "b,0,", "c,0,")
    few = "[settings.limits]\nrecipients_max = 1\n"
    with pytest.raises(CarrypostError) as raised:
        emu.run(emulated.scenario(tmp_path, named, script(tmp_path, row), few))
    assert said in str(raised.value)


def test_an_ordered_script_names_no_recipients(tmp_path: Path) -> None:
    tables_ = emulated.nodes(tmp_path, "a,0,", "b,0,"), script(tmp_path, "1,a,m,10,b,,") + 'ordering = "causal"\n'
    with pytest.raises(CarrypostError, match=r"line 2: message 'm' has recipients, and workload.0 has the ordering"):
        emu.run(emulated.scenario(tmp_path, *tables_))
