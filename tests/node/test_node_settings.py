"""Settings of a real node: file, environment and keywords, and the errors about mistakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrypost.cli._settings import settings_of
from carrypost.errors import ConfigError
from carrypost.node.settings import FIELDS, NodeSettings, RecordSettings, UdpSettings, load, parse

FILE = """
mtu_bytes = 1400
[limits]
frames_max = 7
[node]
data = "here"
name = "anna"
control = "talk.sock"
[udp]
port = 4000
interfaces = ["lo", "wlan*"]
hear = []
[record]
folder = "rows"
rotate_s = 2
"""

WRONG = [
    ("mtu_byte = 1", "the settings, line 1: mtu_byte is not a setting; did you mean mtu_bytes?"),
    (
        "[limits]\nframe_max = 1",
        "the settings, line 2: limits.frame_max is not a setting; did you mean limits.frames_max?",
    ),
    ("[node]\ndate = 'x'", "the settings, line 2: node.date is not a setting; did you mean node.data?"),
    ("[udp]\nprot = 1", "the settings, line 2: udp.prot is not a setting; did you mean udp.port?"),
    ("[record]\nfolders = ''", "the settings, line 2: record.folders is not a setting; did you mean record.folder?"),
    ("[upd]\nport = 1", "the settings, line 1: upd is not a setting; did you mean udp?"),
    ("port = 1", "the settings, line 1: port is not a setting; did you mean udp.port?"),
    ('"" = 1', "the settings: an empty name is not a setting"),
    ("udp = 1", "the settings, line 1: udp must be a table, not 1"),
    ("[udp]\nport = 0", "the settings, line 2: udp.port must be a whole number from 1 to 65,535, not 0"),
    ("[udp]\nport = '1'", "the settings, line 2: udp.port must be a whole number from 1 to 65,535, not '1'"),
    ("[udp]\nport = true", "the settings, line 2: udp.port must be a whole number from 1 to 65,535, not True"),
    ("[udp]\ninterfaces = 'lo'", "the settings, line 2: udp.interfaces must be a list of interface names"),
    ("[udp]\ninterfaces = ['']", "the settings, line 2: udp.interfaces must be a list of interface names"),
    ("[udp]\nhear = 'nobody'", 'the settings, line 2: udp.hear must be a list of addresses, or "all", not'),
    ("[udp]\nipv4_multicast = 1", "the settings, line 2: udp.ipv4_multicast must be true or false, not 1"),
    ("[udp]\npoll_s = nan", "the settings, line 2: udp.poll_s must be a number from 0.05 to 3,600.0, not nan"),
    ("[record]\nfiles_max = 0", "the settings, line 2: record.files_max must be a whole number from 1 to"),
    ("[node]\ndata = 3", "the settings, line 2: node.data must be a folder, not 3"),
    ("[udp]\ngroup_v4 = '10.0.0.1'", "udp.group_v4 must be an IPv4 multicast address, not '10.0.0.1'"),
    ("[udp]\ngroup_v4 = 'ff12::1'", "udp.group_v4 must be an IPv4 multicast address, not 'ff12::1'"),
    ("[udp]\ngroup_v6 = '239.1.2.3'", "udp.group_v6 must be an IPv6 multicast address, not '239.1.2.3'"),
    ("[udp]\ngroup_v6 = 'fe80::1'", "udp.group_v6 must be an IPv6 multicast address, not 'fe80::1'"),
    ("[udp", "the settings cannot be read as TOML"),
]

VARIABLES: list[tuple[str, str, object]] = [
    ("udp.port", "4001", 4001),
    ("udp.interfaces", "lo, wlan*", ("lo", "wlan*")),
    ("udp.interfaces", '["a,b"]', ("a,b",)),
    ("udp.interfaces", "", ()),
    ("udp.hear", "all", None),
    ("udp.hear", "", ()),
    ("udp.hear", "127.0.0.1:1,127.0.0.1:2", ("127.0.0.1:1", "127.0.0.1:2")),
    ("udp.ipv4_broadcast", "no", False),
    ("node.name", "anna", "anna"),
    ("node.data", "folder, with a comma", "folder, with a comma"),
    ("record.sample_s", "0.5", 0.5),
]

CHANGES: list[tuple[str, str, object]] = [
    ("udp.port=4000", "udp.port", 4000),
    (" udp.port = 4000 ", "udp.port", 4000),
    ('udp.interfaces=["lo"]', "udp.interfaces", ("lo",)),
    ("udp.interfaces=lo", "udp.interfaces", ("lo",)),
    ("udp.interfaces=wlan*, eth0", "udp.interfaces", ("wlan*", "eth0")),
    ("udp.hear=[]", "udp.hear", ()),
    ("udp.hear=all", "udp.hear", None),
    ("udp.ipv6_multicast=false", "udp.ipv6_multicast", False),
    ("node.name=anna", "node.name", "anna"),
    ('node.name="7"', "node.name", "7"),
    ("node.name=a=b", "node.name", "a=b"),
    ("record.rotate_s=5", "record.rotate_s", 5.0),
]

WRONG_CHANGES = [
    ("udp.port", "--set must be KEY=VALUE, such as udp.port=4000, not 'udp.port'"),
    ("=4000", "--set must be KEY=VALUE"),
    ("udp.prot=1", "udp.prot is not a setting; did you mean udp.port?"),
    ("udp.port.x=1", "udp.port.x is not a setting"),
    ("udp.port=", "udp.port must be a whole number from 1 to 65,535, not ''"),
    ("udp=1", "udp must be a table, not 1"),
    ("node.name=7", "node.name must be a name, not 7"),
]


def value(settings: NodeSettings, name: str) -> object:
    table, _, field = name.rpartition(".")
    return getattr({"udp": settings.udp, "node": settings.place, "record": settings.record}[table], field)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, and no variables of ours."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("CARRYPOST_"):
            monkeypatch.delenv(name)
    return tmp_path


def test_without_a_file_everything_has_a_default(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(place / "share"))
    settings = load()
    assert (settings.udp, settings.record) == (UdpSettings(), RecordSettings())
    assert settings.udp.hear is None
    assert settings.data == place / "share" / "carrypost"
    assert settings.control == place / "share" / "carrypost" / "control.sock"
    assert settings.record_folder is None
    assert settings.name


def test_the_data_folder_is_in_the_home_folder_where_nothing_else_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(place))
    assert load().data == place / ".local" / "share" / "carrypost"


def test_a_file_is_read_with_all_its_tables_and_its_paths_start_at_its_folder(place: Path) -> None:
    folder = place / "settings"
    folder.mkdir()
    (folder / "node.toml").write_text(FILE)
    settings = load(Path("settings/node.toml"))
    assert (settings.core.mtu_bytes, settings.core.limits.frames_max) == (1400, 7)
    assert (settings.udp.port, settings.udp.interfaces, settings.udp.hear) == (4000, ("lo", "wlan*"), ())
    assert settings.data == folder / "here"
    assert settings.control == folder / "talk.sock"
    assert settings.record_folder == folder / "rows"
    assert (settings.name, settings.record.rotate_s) == ("anna", 2.0)


def test_paths_may_be_absolute_or_start_at_the_home_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place / "anna"))
    assert parse(f"[node]\ndata = '{place}/x'", base=Path("elsewhere")).data == place / "x"
    assert parse("[node]\ndata = '~/x'").data == place / "anna" / "x"
    with pytest.raises(ConfigError, match="there is no home folder of that user: ~nobody-of-that-name/x"):
        _ = parse("[node]\ndata = '~nobody-of-that-name/x'").data


def test_the_environment_lies_over_the_file_and_keywords_lie_over_both() -> None:
    file = "[udp]\nport = 1\nunicast_port = 1\npoll_s = 1"
    environment = {"CARRYPOST_UDP_UNICAST_PORT": "2", "CARRYPOST_UDP_POLL_S": "2", "PATH": "2"}
    udp = parse(file, environment, {"udp": {"poll_s": 3}}).udp
    assert (udp.port, udp.unicast_port, udp.poll_s) == (1, 2, 3.0)
    assert parse(file, environment, {"udp.poll_s": 3}).udp == udp


@pytest.mark.parametrize(("text", "told"), WRONG)
def test_a_mistake_in_the_file_is_named_with_what_is_right(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(("name", "text", "expected"), VARIABLES)
def test_variables_are_read(name: str, text: str, expected: object) -> None:
    variable = "CARRYPOST_" + name.replace(".", "_").upper()
    assert value(parse("", {variable: text}), name) == expected


def test_a_mistake_in_a_variable_is_named_with_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match=r"CARRYPOST_UDP_PROT is not a setting; did you mean CARRYPOST_UDP_PORT\?"):
        parse("", {"CARRYPOST_UDP_PROT": "1"})
    with pytest.raises(ConfigError, match="CARRYPOST_UDP_PORT must be a whole number from 1 to 65,535, not 'many'"):
        parse("", {"CARRYPOST_UDP_PORT": "many"})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("limits.recipient_max", "limits.recipient_max is not a setting; did you mean limits.recipients_max?"),
        ("limits.xyzzy", "limits.xyzzy is not a setting"),
        ("udb.port", "udb.port is not a setting; did you mean udp.port?"),
    ],
)
def test_a_mistaken_name_in_a_table_is_compared_with_those_of_the_table(name: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(keywords={name: 1})
    assert str(caught.value) == told


def test_the_variable_of_an_option_of_commands_is_no_setting() -> None:
    assert parse("", {"CARRYPOST_MASTER": "local[2]", "CARRYPOST_DATA": "traces"}) == parse("")


def test_a_file_may_have_a_mark_of_its_encoding_and_any_ends_of_lines(place: Path) -> None:
    file = place / "node.toml"
    file.write_bytes(b"\xef\xbb\xbf[udp]\r\nport = 4001\r\n")
    assert load(file).udp.port == 4001


def test_only_mistakes_of_the_file_are_blamed_on_the_file(place: Path) -> None:
    file = place / "node.toml"
    file.write_text("[udp]\nprot = 1")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f"{file}, line 2: udp.prot is not a setting; did you mean udp.port?"
    file.write_text("")
    with pytest.raises(ConfigError) as caught:
        load(file, {"CARRYPOST_UDP_PROT": "1"})
    assert str(caught.value).startswith("CARRYPOST_UDP_PROT ")
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {"udp": {"prot": 1}})
    assert str(caught.value).startswith("udp.prot ")


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), (b"\xff", "it is not UTF-8 text")]
)
def test_a_file_that_cannot_be_read_is_told(place: Path, content: bytes | None, reason: str) -> None:
    file = place / "node.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f"cannot read the settings file {file}: {reason}"


def test_a_folder_with_a_long_name_has_its_control_socket_elsewhere_and_always_at_the_same_place(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    long = parse("", {}, {"node": {"data": str(place / ("x" * 100))}})
    assert long.control.parent == Path("/run/user/1")
    assert len(os.fsencode(long.control)) <= 100
    assert parse("", {}, {"node": {"data": str(place / ("x" * 100))}}).control == long.control
    assert parse("", {}, {"node": {"data": str(place / ("y" * 100))}}).control != long.control
    accents = parse("", {}, {"node": {"data": "/" + "é" * 60}})  # Bytes count, not letters.
    assert accents.control.parent == Path("/run/user/1")
    edge = parse("", {}, {"node": {"data": "/" + "x" * (100 - len("//control.sock"))}})
    assert edge.control == edge.data / "control.sock"


def test_a_node_without_a_name_has_one_that_a_plain_identity_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "a:b" + "é" * 40)
    assert parse().name == "a-b" + "é" * 30
    monkeypatch.setattr("socket.gethostname", str)
    assert parse().name == "node"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("change", "name", "expected"), CHANGES)
def test_set_takes_any_setting_as_in_the_file(change: str, name: str, expected: object) -> None:
    assert value(settings_of(None, None, [change]), name) == expected


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("change", "told"), WRONG_CHANGES)
def test_a_mistake_in_set_is_told(change: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(None, None, [change])
    assert str(caught.value).startswith(told)


def test_the_command_line_lies_over_everything_and_the_last_word_counts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "sub").mkdir()
    (place / "sub" / "node.toml").write_text(FILE)
    monkeypatch.setenv("CARRYPOST_UDP_PORT", "4001")
    settings = settings_of(
        Path("sub/node.toml"), Path("other"), ["udp.port=4002", "udp.port=4003", "mtu_bytes=1000", "node.name=b"]
    )
    assert (settings.udp.port, settings.core.mtu_bytes, settings.name) == (4003, 1000, "b")
    assert settings.data == place / "other"
    with pytest.raises(ConfigError, match="udp must be a table"):
        settings_of(None, None, ["udp=1", "udp.port=4000"])


@pytest.mark.usefixtures("place")
def test_a_folder_of_a_user_that_there_is_not_is_told() -> None:
    with pytest.raises(ConfigError, match="there is no home folder of that user: ~nobody-of-that-name/x"):
        settings_of(None, Path("~nobody-of-that-name/x"))


def test_every_table_knows_every_field_by_name_and_variable() -> None:
    everything = FIELDS.read_environment({"CARRYPOST_RECORD_FOLDER": "x", "CARRYPOST_LIMITS_FRAMES_MAX": "3"})
    assert everything == {"record.folder": "x", "limits.frames_max": 3}
