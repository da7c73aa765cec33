"""A node's folder: its key, its lock, its names; and that nothing in it is ever lost by a mistake."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.loopback import apart

from carrypost.errors import ConfigError, LocalError, NodeError, RunningError
from carrypost.node.folder import NodeFolder, exposed, read_key, write_key
from carrypost.node.runtime import Node
from carrypost.node.settings import NodeSettings, parse
from carrypost.security.identity import Identity

ANNA, BERT = (Identity.derived(1, name).node for name in ("anna", "bert"))
HOLDER = """
import sys, time
from pathlib import Path
from carrypost.node.folder import NodeFolder
from carrypost.node.settings import parse
home = NodeFolder(parse("", {}, {"node": {"data": sys.argv[1]}}))
home.create()
with home.locked():
    print("locked", flush=True)
    time.sleep(60)
"""


def settings(folder: Path, **keywords: object) -> NodeSettings:
    return parse("", {}, {"node": {"data": str(folder), "name": "anna"}, **keywords})


@pytest.fixture
def home(tmp_path: Path) -> NodeFolder:
    made = NodeFolder(settings(tmp_path / "node"))
    made.create()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- the folder -----------------------------------------------------------------------------------------------------


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = NodeFolder(settings(tmp_path / "deep" / "node"))
    home.create()
    home.create()
    assert mode(home.folder) == 0o700


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "node"):
        with pytest.raises(ConfigError, match=r"cannot use the folder .*file.*; choose another folder \(data\)"):
            NodeFolder(settings(folder)).create()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_lock_that_is_no_file_is_told(home: NodeFolder) -> None:
    (home.folder / "lock").unlink()
    (home.folder / "lock").mkdir()
    with pytest.raises(NodeError, match=r"cannot use the folder .*: Is a directory"), home.locked():
        pass


def test_a_second_node_in_the_folder_is_told_which_process_has_it(home: NodeFolder) -> None:
    with home.locked():
        with pytest.raises(RunningError, match=rf"already running in .*node \(process {os.getpid()}\)"), home.locked():
            pass
        (home.folder / "lock").write_bytes(b"\xff\n")  # Whatever is in it: the lock is what counts.
        with pytest.raises(RunningError, match=r"already running in .*node; another node needs"), home.locked():
            pass
    with home.locked():
        pass


def test_a_lock_that_the_system_cannot_give_is_not_taken_for_another_node(
    home: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(NodeError, match="No locks available") as caught, home.locked():
        pass
    assert not isinstance(caught.value, RunningError)


def test_the_lock_is_free_again_after_its_holder_was_killed(home: NodeFolder) -> None:
    command = [sys.executable, "-c", HOLDER, str(home.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:  # noqa: S603 - our own program
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(RunningError, match=rf"\(process {holder.pid}\)"), home.locked():
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with home.locked():
        assert (home.folder / "lock").read_text() == f"{os.getpid()}\n"


# --- the key --------------------------------------------------------------------------------------------------------


def test_a_key_is_made_once_for_its_owner_alone_and_read_again(home: NodeFolder) -> None:
    first = home.identity()
    content = home.key_file.read_bytes()
    assert first.signed
    assert mode(home.key_file) == 0o600
    assert not exposed(home.key_file)
    again = NodeFolder(settings(home.folder)).identity()
    assert (again.node, again.seed) == (first.node, first.seed)
    assert home.key_file.read_bytes() == content
    assert not list(home.folder.glob("*.part")) + list(home.folder.glob(".*"))


def test_a_key_that_others_can_read_is_noticed(home: NodeFolder) -> None:
    home.identity()
    home.key_file.chmod(0o640)
    assert exposed(home.key_file)


def _cut(content: bytes) -> bytes:
    return content[:-10]


def _flip(content: bytes) -> bytes:
    return content[:-3] + (b"b" if content[-3:-2] != b"b" else b"c") + content[-2:]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "there is no key in it"),
    "cut short": (_cut, "its last word, of 43 characters, is not a key"),
    "only the comment": (lambda content: content[: content.index(b"\n") + 1], "there is no key in it"),
    "one letter is another": (_flip, "the id and the key in it do not belong together"),
    "zeroes": (lambda content: bytes(len(content)), "it must have 2 words, a node's id and its key, and has 1"),
    "not text": (lambda _: b"\xff\xfe\x00", "it is not text"),
    "another file": (lambda _: b"hello world", "its last word, of 5 characters, is not a key"),
    "no letters of base32": (
        lambda content: content[:-20] + b"0189!\n",
        "its last word, of 38 characters, is not a key",
    ),
    "twice": (lambda content: content + content, "it must have 2 words, a node's id and its key, and has 4"),
}


@pytest.mark.parametrize(("damage", "what"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_key_is_told_and_left_as_it_is(home: NodeFolder, damage: Callable[[bytes], bytes], what: str) -> None:
    home.identity()
    home.key_file.write_bytes(damage(home.key_file.read_bytes()))
    before = contents(home.folder)
    with pytest.raises(NodeError) as caught:
        home.identity()
    assert str(caught.value) == (
        f"{home.key_file} is not a key file, or is damaged ({what}): restore it from its backup; it was left unchanged"
    )
    with pytest.raises(NodeError, match="use another copy; it was left unchanged"):
        read_key(home.key_file, "use another copy")
    assert contents(home.folder) == before


def test_a_key_that_cannot_be_read_is_told_and_left_as_it_is(home: NodeFolder) -> None:
    home.key_file.mkdir()
    with pytest.raises(NodeError, match=r"cannot read the key file .*: Is a directory; check its permissions"):
        home.identity()
    assert home.key_file.is_dir()


def test_a_key_that_is_elsewhere_and_not_there_now_is_not_replaced(home: NodeFolder) -> None:
    home.key_file.symlink_to(home.folder / "stick" / "node.key")
    with pytest.raises(NodeError, match="there is no key file"):
        home.identity()
    assert home.key_file.is_symlink()


def test_a_store_without_its_key_does_not_get_another_key(home: NodeFolder) -> None:
    home.store_file.write_bytes(b"precious")
    with pytest.raises(NodeError, match=r"the key file .* is missing, but the node's store is there: restore the key"):
        home.identity()
    assert not home.key_file.exists()
    assert home.store_file.read_bytes() == b"precious"


def test_a_folder_whose_key_is_gone_does_not_get_another_key(home: NodeFolder) -> None:
    """Check that no key is made: it would be refused, too, and prevent the right one from being restored."""
    node = home.identity().node
    home.key_file.unlink()
    with pytest.raises(NodeError, match=f"belongs to the node {node}, whose key file is missing: restore the key"):
        home.identity()
    assert not home.has_key


def test_a_folder_belongs_to_one_key(home: NodeFolder) -> None:
    mine = home.identity().node
    home.key_file.unlink()
    other = Identity.generate()
    write_key(other, home.key_file)
    with pytest.raises(NodeError, match=f"belongs to the node {mine}, and this is {other.node}: use another folder"):
        home.identity()
    with pytest.raises(NodeError, match="belongs to the node"):
        home.check_owner(other)


def test_a_folder_belongs_to_one_name_where_security_is_off(tmp_path: Path) -> None:
    anna = NodeFolder(settings(tmp_path, security="off"))
    anna.create()
    assert anna.identity().node == "anna"
    assert not anna.key_file.exists()
    with pytest.raises(NodeError, match="belongs to the node anna, and this is bert"):
        NodeFolder(parse("", {}, {"node": {"data": str(tmp_path), "name": "bert"}, "security": "off"})).identity()
    with pytest.raises(NodeError, match="belongs to the node anna"):
        NodeFolder(settings(tmp_path)).identity()


def test_a_damaged_mark_of_the_owner_is_told(home: NodeFolder) -> None:
    node = home.identity().node
    (home.folder / "node.id").write_bytes(b"\xff")
    with pytest.raises(NodeError, match=f"it is damaged; remove the file if the folder belongs to the node {node}"):
        home.identity()
    (home.folder / "node.id").unlink()
    assert home.identity().node == node
    assert (home.folder / "node.id").read_text() == f"{node}\n"


def test_a_backup_is_a_key_file_for_its_owner_alone_and_never_goes_over_anything(
    home: NodeFolder, tmp_path: Path
) -> None:
    identity = home.identity()
    copy = tmp_path / "copy"
    (tmp_path / "copy.part").write_text("mine")
    write_key(identity, copy)
    assert mode(copy) == 0o600
    assert read_key(copy).seed == identity.seed
    before = contents(tmp_path)
    with pytest.raises(NodeError, match=r"copy exists already; it was left unchanged"):
        write_key(Identity.generate(), copy)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(NodeError, match="exists already"):
        write_key(identity, link)
    with pytest.raises(LocalError, match=r"cannot write the key file .*: No such file or directory"):
        write_key(identity, tmp_path / "nowhere" / "copy")
    assert contents(tmp_path) == before


def test_a_backup_goes_to_a_stick_that_knows_no_second_names(
    home: NodeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_key(home.identity(), tmp_path / "copy")
    assert read_key(tmp_path / "copy").node == home.identity().node
    with pytest.raises(NodeError, match="exists already"):
        write_key(Identity.generate(), tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "node"]


def test_a_disk_that_fails_leaves_no_half_key(home: NodeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(NodeError, match=r"key file .*: No space left on device; make room on that disk"):
        home.identity()
    assert [path.name for path in home.folder.iterdir()] == ["lock"]


# --- lives ----------------------------------------------------------------------------------------------------------


def incarnation(folder: Path, **keywords: object) -> int:
    async def life() -> int:
        async with Node(settings(folder, udp=apart(), **keywords)) as node:
            deadline_s = time.monotonic() + 10
            while not node.store.status()["commits"]:  # It is on disk, as it would be before anything is said.
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.005)
            return node.host.overview().incarnation

    return asyncio.run(life())


def test_a_key_that_comes_back_without_its_store_begins_after_all_its_earlier_lives(tmp_path: Path) -> None:
    lives = [incarnation(tmp_path) for _ in range(2)]
    assert lives == [1, 2]
    for _ in range(2):
        for file in tmp_path.glob("store.sqlite*"):
            file.unlink()
        lives += [incarnation(tmp_path) for _ in range(2)]
    assert lives == sorted(set(lives))
    assert lives[-1] - lives[0] > 1_000


@pytest.mark.parametrize("security", ["signed", "off"])
def test_a_node_does_not_start_on_a_store_that_became_empty(tmp_path: Path, security: str) -> None:
    """A missing store was removed by a person; an empty one was lost by a disk or a file system."""
    assert incarnation(tmp_path, security=security) >= 1
    store = tmp_path / "store.sqlite"
    store.write_bytes(b"")
    with pytest.raises(NodeError, match=r"is damaged \(it is empty\) and was left unchanged"):
        incarnation(tmp_path, security=security)
    assert store.read_bytes() == b""
    store.unlink()
    assert incarnation(tmp_path, security=security) > 1_000


def test_a_plain_name_without_a_store_begins_after_all_its_earlier_lives(tmp_path: Path) -> None:
    """Check the ids, which have nothing else that distinguishes one life from another."""
    lives = [incarnation(tmp_path / each, security="off") for each in ("a", "a", "b", "b")]
    assert lives == sorted(set(lives))


# --- pet names ------------------------------------------------------------------------------------------------------


def test_pet_names_are_kept_changed_and_removed(home: NodeFolder) -> None:
    assert home.pet_names() == {}
    home.set_pet_name(ANNA, "anna")
    home.set_pet_name(BERT, "Bert from [next] door ☂")
    home.set_pet_name(ANNA, "anne")
    home.set_pet_name(ANNA, "anne")
    assert NodeFolder(settings(home.folder)).pet_names() == {ANNA: "anne", BERT: "Bert from [next] door ☂"}
    assert mode(home.folder / "names.json") == 0o600
    home.set_pet_name(ANNA, "")
    assert list(home.pet_names()) == [BERT]
    with pytest.raises(LocalError, match=f"the node {ANNA} has no pet name"):
        home.set_pet_name(ANNA, "")


def test_a_pet_name_is_of_one_node(home: NodeFolder) -> None:
    home.set_pet_name(ANNA, "anna")
    with pytest.raises(LocalError, match=f"'anna' is already the name of {ANNA}"):
        home.set_pet_name(BERT, "anna")
    home.set_pet_name(ANNA, "")
    home.set_pet_name(BERT, "anna")
    assert home.pet_names() == {BERT: "anna"}


@pytest.mark.parametrize("name", ["x" * 65, " x", "x ", "\x1b[31m", "a\nb"])
def test_a_pet_name_can_be_printed(home: NodeFolder, name: str) -> None:
    with pytest.raises(LocalError, match="a pet name must have 1 to 64 printable characters"):
        home.set_pet_name(ANNA, name)
    assert home.pet_names() == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"n1": 3}', b"\xff", b"[" * 100_000])
def test_damaged_pet_names_are_told_and_left_as_they_are(home: NodeFolder, content: bytes) -> None:
    file = home.folder / "names.json"
    file.write_bytes(content)
    for act in (home.pet_names, lambda: home.set_pet_name(ANNA, "anna")):
        with pytest.raises(NodeError, match=r"names.json are damaged: repair the file, or move it away"):
            act()
    assert file.read_bytes() == content
