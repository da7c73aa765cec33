"""STOMP frames: the versions by tables, any bytes cut anywhere, and what other implementations write and read."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stomp import utils as stomp_py

from carrypost.daemon.stomp import codec
from carrypost.daemon.stomp.codec import BEAT, RULES, SERVER, Decoder, Frame, StompError, Version, agreed, encode

BODY_MAX = 1_000
V1_0, V1_1, V1_2 = Version


def decoded(data: bytes, version: Version | None = V1_2, **more: Any) -> list[Frame]:  # noqa: ANN401 - as `Decoder` has them
    """Return the frames in these bytes, all of which are whole."""
    decoder = Decoder(BODY_MAX, version=version, **more)
    decoder.feed(data)
    return taken(decoder)


def taken(decoder: Decoder) -> list[Frame]:
    found = []
    while (frame := decoder.next()) is not None:
        found.append(frame)
    return found


def fault(data: bytes, version: Version | None = V1_2) -> StompError:
    with pytest.raises(StompError) as error:
        decoded(data, version)
    return error.value


# --- what is a frame -------------------------------------------------------------------------------------------

SEND = b"SEND\ndestination:/topic/a\n"
FRAMES: dict[str, tuple[bytes, list[Frame]]] = {
    "a body up to NUL": (SEND + b"\nhi\0", [Frame("SEND", {"destination": "/topic/a"}, b"hi")]),
    "no body": (SEND + b"\n\0", [Frame("SEND", {"destination": "/topic/a"})]),
    "a body by its length": (
        SEND + b"content-length:3\n\na\0b\0",
        [Frame("SEND", {"destination": "/topic/a", "content-length": "3"}, b"a\0b")]),
    "a length of 0": (
        b"BEGIN\ntransaction:t\ncontent-length:0\n\n\0", [Frame("BEGIN", {"transaction": "t", "content-length": "0"})]),
    "a blank line in a body": (SEND + b"\n\n\r\n\nx\0", [Frame("SEND", {"destination": "/topic/a"}, b"\n\r\n\nx")]),
    "CR LF": (b"SEND\r\ndestination:/topic/a\r\n\r\nhi\r\n\0", [Frame("SEND", {"destination": "/topic/a"}, b"hi\r\n")]),
    "CR LF here and there": (
        b"SEND\ndestination:/topic/a\r\nb:c\n\r\n\0", [Frame("SEND", {"destination": "/topic/a", "b": "c"})]),
    "beats around": (b"\n\r\n\nDISCONNECT\n\n\0\n\nDISCONNECT\n\n\0\n", [Frame("DISCONNECT", {})] * 2),
    "the first of a header that is repeated": (
        SEND + b"a:1\na:2\ndestination:/queue/b\n\n\0", [Frame("SEND", {"destination": "/topic/a", "a": "1"})]),
    "an empty value": (SEND + b"a:\n\n\0", [Frame("SEND", {"destination": "/topic/a", "a": ""})]),
    "text that is not ASCII": (
        SEND + "größe:5 µm\n\n".encode() + b"\xff\0",
        [Frame("SEND", {"destination": "/topic/a", "größe": "5 µm"}, b"\xff")]),
    "as many headers as may be": (
        SEND + b"".join(b"h%d:x\n" % number for number in range(99)) + b"\n\0",
        [Frame("SEND", {"destination": "/topic/a", **{f"h{number}": "x" for number in range(99)}})]),
    "the longest body": (
        SEND + b"\n" + b"x" * BODY_MAX + b"\0", [Frame("SEND", {"destination": "/topic/a"}, b"x" * BODY_MAX)]),
}  # fmt: skip


@pytest.mark.parametrize("what", FRAMES)
@pytest.mark.parametrize("version", [V1_1, V1_2])
def test_frames_are_read_whole_and_byte_by_byte(what: str, version: Version) -> None:
    data, frames = FRAMES[what]
    assert decoded(data, version) == frames
    decoder, found = Decoder(BODY_MAX, version=version), []
    for at in range(len(data)):
        decoder.feed(data[at : at + 1])
        found += taken(decoder)
    assert found == frames


ESCAPES: list[tuple[Version, bytes, dict[str, str] | None]] = [
    (V1_0, rb"a\c:b\n", {"a\\c": "b\\n"}),
    (V1_0, rb" a :  b c ", {"a": "b c"}),
    (V1_0, b" a:1\na:2", {"a": "1"}),
    (V1_1, rb" a :  b c ", {" a ": "  b c "}),
    (V1_1, rb"a\cb\\n:\n\\\c", {"a:b\\n": "\n\\:"}),
    (V1_1, rb"a:b:c", {"a": "b:c"}),
    (V1_1, rb"a:\r", None),
    (V1_1, rb"a:\t", None),
    (V1_2, rb"a\r:\r\n\c\\", {"a\r": "\r\n:\\"}),
    (V1_2, b"a\\c:1\na\\c:2", {"a:": "1"}),
    (V1_2, rb"a:\t", None),
    (V1_2, rb"a:x" + b"\\", None),
    (V1_2, rb"\x:1", None),
]


@pytest.mark.parametrize(("version", "line", "meant"), ESCAPES)
def test_each_version_has_its_own_escapes(version: Version, line: bytes, meant: dict[str, str] | None) -> None:
    data = SEND + b"receipt:r\n" + line + b"\n\n\0"
    if meant is None:
        error = fault(data, version)
        assert "unknown escape" in str(error)
        assert error.receipt == "r"
        return
    (frame,) = decoded(data, version)
    assert frame.headers == {"destination": "/topic/a", "receipt": "r", **meant}


CONNECTS: list[tuple[bytes, dict[str, str]]] = [
    (b"CONNECT\nlogin: me \n\n\0", {"login": "me"}),
    (b"CONNECT\naccept-version:1.0,1.2\npasscode: a\\cb \n\n\0", {"accept-version": "1.0,1.2", "passcode": " a\\cb "}),
    (b"STOMP\r\naccept-version:1.2\r\nhost:x:1\r\n\r\n\0", {"accept-version": "1.2", "host": "x:1"}),
]


@pytest.mark.parametrize(("data", "headers"), CONNECTS)
def test_a_connect_is_read_before_the_version_is_known(data: bytes, headers: dict[str, str]) -> None:
    (frame,) = decoded(data, None)
    assert frame.headers == headers


def test_the_version_that_is_set_after_a_connect_holds_for_what_came_with_it() -> None:
    decoder = Decoder(BODY_MAX)
    decoder.feed(b"CONNECT\naccept-version:1.1\n\n\0\n" + SEND + b"a:\\c\n\n\0")
    connect = decoder.next()
    assert connect is not None
    decoder.version = agreed(connect.headers.get("accept-version"))
    assert taken(decoder) == [Frame("SEND", {"destination": "/topic/a", "a": ":"})]


# --- what is none ----------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[bytes, str]] = {
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n", "'GET / HTTP/1.1' is not a command of STOMP 1.2"),
    "what can become no command": (b"Q", "'Q' is not a command"),
    "bytes": (b"\x16\x03\x01", "is not a command"),
    "a command in small letters": (b"send\n", "'send' is not a command"),
    "a command that is too long": (b"SENDS\n", "'SENDS' is not a command"),
    "a second connect": (b"CONNECT\n", "'CONNECT' is not a command of STOMP 1.2"),
    "a server's command": (b"MESSAGE\n", "'MESSAGE' is not a command"),
    "a long line": (b"X" * 40, "is not a command"),
    "no empty line": (b"DISCONNECT\nreceipt:1\0", "an empty line is missing"),
    "NUL in a header": (SEND + b"a:b\0c\n\n\0", "an empty line is missing"),
    "a header without a colon": (SEND + b"receipt:r\nab\n\n\0", "a header must be NAME:VALUE, not 'ab'"),
    "a header without a name": (SEND + b":x\n\n\0", "a header must be NAME:VALUE, not ':x'"),
    "not UTF-8": (SEND + b"a:\xff\n\n\0", "not UTF-8"),
    "too many headers": (SEND + b"a:b\n" * 100 + b"\n\0", "more than 100 headers"),
    "headers that are too long": (SEND + b"a:" + b"x" * 65_536, "headers of more than 65,536 bytes"),
    "headers that never end": (SEND + b"a:b\n" * 20_000, "headers of more than 65,536 bytes"),
    "a length that is none": (SEND + b"content-length:1x\n\n\0", "content-length must be a number of bytes, not '1x'"),
    "a negative length": (SEND + b"content-length:-1\n\n\0", "not '-1'"),
    "a length in other digits": (SEND + "content-length:٣\n\n\0".encode(), "must be a number"),
    "a length with a space": (SEND + b"content-length: 1\n\nx\0", "not ' 1'"),
    "a length of too many digits": (SEND + b"content-length:" + b"1" * 19 + b"\n\n", "must be a number of bytes"),
    "a length over the limit, of a body that did not come": (
        SEND + b"content-length:1001\n\n",
        "a body of 1,001 bytes; at most 1,000 are accepted",
    ),
    "a body over the limit": (SEND + b"\n" + b"x" * 1_001, "a body of more than 1,000 bytes"),
    "no NUL after the length": (SEND + b"content-length:2\n\nabc\0", "no NUL after the 2 bytes"),
    "a body where none may be": (b"BEGIN\ntransaction:t\n\nx", "BEGIN must not have a body"),
    "a length where no body may be": (b"BEGIN\ntransaction:t\ncontent-length:1\n\n", "BEGIN must not have a body"),
    "half a line end between frames": (b"\rSEND", "a carriage return without a line feed"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_no_frame_is_told_and_ends_the_reading(what: str) -> None:
    data, text = FAULTS[what]
    good = SEND + b"\nfirst\0"
    decoder = Decoder(BODY_MAX, version=V1_2)
    decoder.feed(good + data)
    assert decoder.next() == Frame("SEND", {"destination": "/topic/a"}, b"first")
    with pytest.raises(StompError) as error:
        decoder.next()
    assert text in str(error.value)
    decoder.feed(good)
    with pytest.raises(StompError) as again:
        decoder.next()
    assert again.value is error.value


def test_a_fault_tells_the_receipt_that_the_frame_asked_for() -> None:
    assert fault(SEND + b"receipt:r\ncontent-length:x\n\n\0").receipt == "r"
    assert fault(SEND + b"receipt:r\nx\n\n\0").receipt == "r"
    assert fault(b"ACK\nreceipt:r\n\n\0").receipt == "r"
    assert fault(SEND + b"receipt:r\n\n" + b"x" * 2_000).receipt == "r"
    assert fault(SEND + b"x\nreceipt:r\n\n\0").receipt is None


NEEDED = [
    (version, command, name)
    for version in Version
    for command, names in RULES[version].needed.items()
    for name in names
]


@pytest.mark.parametrize(("version", "command", "name"), NEEDED)
def test_a_frame_without_a_header_that_it_needs_is_refused(version: Version, command: str, name: str) -> None:
    names = RULES[version].needed[command]
    data = "".join(f"{each}:x\n" for each in names if each != name)
    assert f"{command} needs the header {name!r} in STOMP {version}" in str(
        fault(f"{command}\n{data}\n\0".encode(), version)
    )
    whole = "".join(f"{each}:x\n" for each in names)
    assert decoded(f"{command}\n{whole}\n\0".encode(), version) == [Frame(command, dict.fromkeys(names, "x"))]


def test_versions_have_the_commands_of_their_specification() -> None:
    later = {"SEND", "SUBSCRIBE", "UNSUBSCRIBE", "BEGIN", "COMMIT", "ABORT", "ACK", "NACK", "DISCONNECT"}
    assert [set(RULES[version].needed) for version in Version] == [later - {"NACK"}, later, later]
    assert [RULES[version].acknowledges for version in Version] == ["message-id", "message-id", "id"]
    assert [RULES[version].beats for version in Version] == [False, True, True]


# --- versions and heart-beats ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepted", "version"),
    [
        (None, V1_0), ("1.0", V1_0), ("1.1", V1_1), ("1.2", V1_2), ("1.0,1.1,1.2", V1_2), ("1.2,1.1", V1_2),
        (" 1.1 , 2.0", V1_1), ("2.0", None), ("", None), ("1", None), ("1.10", None),
    ],
)  # fmt: skip
def test_the_highest_version_of_both_counts(accepted: str | None, version: Version | None) -> None:
    assert agreed(accepted) == version


@pytest.mark.parametrize(("text", "beats"), [(None, (0, 0)), ("0,0", (0, 0)), ("10000,5000", (10_000, 5_000))])
def test_heart_beats_are_two_numbers(text: str | None, beats: tuple[int, int]) -> None:
    assert codec.heart_beat(text) == beats


@pytest.mark.parametrize("text", ["", "1", "1,", "1,2,3", "-1,2", "a,b", "1 ,2", "1,2\n", "9999999999,0", "٣,٣"])
def test_what_are_no_heart_beats_is_told(text: str) -> None:
    with pytest.raises(StompError, match="heart-beat must be two numbers"):
        codec.heart_beat(text)


# --- any bytes -------------------------------------------------------------------------------------------------


def outcome(data: bytes, cuts: list[int], version: Version | None) -> tuple[list[Frame], str | None]:
    """Return the frames of bytes that arrive in pieces, and the fault that ended decoding."""
    decoder, found = Decoder(BODY_MAX, version=version), list[Frame]()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(edges):
        decoder.feed(data[begin:end])
        try:
            found += taken_with(decoder, found)
        except StompError as error:
            return found, str(error)
    return found, None


def taken_with(decoder: Decoder, found: list[Frame]) -> list[Frame]:
    """Return the frames, read one by one, so that those before a fault are kept."""
    while (frame := decoder.next()) is not None:
        found.append(frame)
    return []


PIECES = st.sampled_from([
    b"SEND\n", b"SEND\r\n", b"ACK\n", b"BEGIN\n", b"CONNECT\n", b"destination:/topic/a\n", b"transaction:t\n",
    b"id:1\n", b"content-length:3\n", b"content-length:0\n", b"a\\c:\\n\n", b"a:\\t\n", b"\n", b"\r\n", b"\r", b"\0",
    b"abc", b"\xff", b":",
    b"receipt:r\n", b"x" * 400, b"h:" + b"y" * 30_000 + b"\n",
])  # fmt: skip
STREAMS = st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=20).map(b"".join))
VERSIONS = st.sampled_from([None, *Version])


@given(STREAMS, st.lists(st.integers(0, 100_000), max_size=6), VERSIONS)
@example(b"SEND\ndestination:a\n\r\nx\0", [20], V1_2)
@example(b"\r\nSEND", [1], V1_2)
def test_any_bytes_are_frames_or_one_fault_wherever_they_are_cut(
    data: bytes, cuts: list[int], version: Version | None
) -> None:
    whole, cut = outcome(data, [], version), outcome(data, cuts, version)
    assert cut[0] == whole[0]
    assert (cut[1] is None) == (whole[1] is None)


@given(st.integers(0, 2**32), st.sampled_from(list(Version)))
def test_a_legal_frame_with_one_fault_is_another_frame_or_a_fault(seed: int, version: Version) -> None:
    chance = random.Random(seed)
    good = encode(Frame("SEND", {"destination": "/queue/a", "k": "v:\\\n"}, b"body"), version)
    at = chance.randrange(len(good))
    change = chance.choice([b"", bytes([chance.randrange(256)]), good[at : at + 1] * 2])
    found, error = outcome(good[:at] + change + good[at + 1 :] + good, [chance.randrange(200)], version)
    assert len(found) <= 2
    if len(found) == 2:
        assert error is None
        assert found[1] == decoded(good, version)[0]


def test_what_is_held_is_bounded_whatever_comes() -> None:
    for data in (b"a:b\n" * 100, b"x" * 100, b"\n" * 100, b"\0" * 100):
        decoder, fed = Decoder(BODY_MAX, version=V1_2), 0
        decoder.feed(SEND)
        try:
            while fed < 1_000_000:
                decoder.feed(data)
                fed += len(data)
                taken(decoder)
                assert len(decoder._buffer) <= codec.HEAD_BYTES_MAX + len(data)  # noqa: SLF001 - it is its only memory
        except StompError:
            assert fed <= codec.HEAD_BYTES_MAX + len(data)
            assert not decoder._buffer  # noqa: SLF001 - likewise
        else:
            assert data[:1] == b"\n"


# --- to bytes, and other implementations -----------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HEADERS = st.dictionaries(TEXT.filter(bool), TEXT, max_size=6)


@given(HEADERS, st.binary(max_size=300), st.sampled_from([V1_1, V1_2]))
def test_frames_come_back_as_they_were_written(headers: dict[str, str], body: bytes, version: Version) -> None:
    headers.pop("content-length", None)
    frame = Frame("MESSAGE", headers, body)
    (found,) = decoded(BEAT + encode(frame, version) + BEAT, version, commands=SERVER)
    lost = str.maketrans({"\0": "\ufffd"} if version is V1_2 else {"\0": "\ufffd", "\r": " "})
    meant: dict[str, str] = {}
    for name, value in headers.items():
        meant.setdefault(name.translate(lost), value.translate(lost))
    length = {"content-length": str(len(body))} if body else {}
    assert found == Frame("MESSAGE", meant | length, body)


@given(TEXT, st.binary(max_size=100))
def test_what_a_version_cannot_say_breaks_no_frame(value: str, body: bytes) -> None:
    two = [Frame("MESSAGE", {"a": value, "b": "x"}, body), Frame("ERROR", {"message": value})]
    found = decoded(b"".join(encode(each, V1_0) for each in two), V1_0, commands=SERVER)
    assert [each.command for each in found] == ["MESSAGE", "ERROR"]
    assert found[0].headers["b"] == "x"
    assert found[0].body == body
    assert found[1].headers["message"] == value.translate({0: "\ufffd", 10: " ", 13: " "}).strip()


def test_a_connected_frame_has_no_escapes() -> None:
    assert (
        encode(Frame("CONNECTED", {"version": "1.2", "server": "a:b\\\n"}), V1_2)
        == b"CONNECTED\nversion:1.2\nserver:a:b\\ \n\n\0"
    )


@pytest.mark.parametrize("version", [V1_1, V1_2])
def test_stomp_py_reads_what_is_written_and_writes_what_is_read(version: Version) -> None:
    frame = Frame("MESSAGE", {"destination": "/topic/a", "subscription": "1", "k": "a:b\\c\nd"}, b"two\nlines")
    read = stomp_py.parse_frame(encode(frame, version))
    escaped = {
        name: value.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c")
        for name, value in frame.headers.items()
    }
    assert read is not None
    assert read.cmd == "MESSAGE"
    assert {name: value for name, value in read.headers.items() if name != "content-length"} in (frame.headers, escaped)
    theirs = stomp_py.convert_frame(stomp_py.Frame("SEND", {"destination": "/queue/a", "receipt": "r"}, "hi"))
    assert decoded(b"".join(theirs), version) == [Frame("SEND", {"destination": "/queue/a", "receipt": "r"}, b"hi")]
