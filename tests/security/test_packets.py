"""Protected datagrams: what members of a closed network read, and nobody else."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from carrypost.config import Limits
from carrypost.gossip.wire import codec
from carrypost.security import packets
from carrypost.security.identity import derived
from carrypost.security.packets import PacketKeys, Packets, packet_key

NEW, OLD = packet_key(b"n" * 32), packet_key(b"o" * 32)
KEYS = PacketKeys(NEW, (OLD,))
PLAIN = b"CP\x01\x91\x92\x05\x01"


def node(name: str, keys: PacketKeys | None = KEYS) -> Packets:
    """Return the protection of a node, whose prefix is its name."""
    made = Packets(name.encode(), derived(1, name, 1))
    made.rekey(keys)
    return made


def refusal(datagram: bytes) -> dict[str, int]:
    """Return what the codec refuses of a datagram."""
    return codec.decode(datagram, Limits()).refused


def test_a_member_reads_what_a_member_sends_and_a_datagram_grows_by_32_bytes() -> None:
    (sealed,) = node("a").seal([PLAIN])
    assert len(sealed) == len(PLAIN) + 32
    assert node("b").open(sealed) == (PLAIN, b"")
    (old,) = node("a").seal([PLAIN], OLD.id)
    assert node("b").open(old) == (PLAIN, OLD.id)


def test_every_changed_or_cut_byte_is_refused_as_packet_and_the_next_datagram_is_read() -> None:
    reader, sealed = node("b"), node("a").seal([PLAIN])[0]
    changed = [sealed[:at] + bytes([sealed[at] ^ 0x15]) + sealed[at + 1 :] for at in range(len(sealed))]
    for each in [*changed, *(sealed[:cut] for cut in range(len(sealed))), sealed + b"x"]:
        before = reader.refused
        opened = reader.open(each)
        assert reader.refused == before + 1 if opened is None else refusal(opened[0]) == {"packet": 1}
    assert reader.open(sealed) == (PLAIN, b"")


def test_a_stranger_is_dropped_at_a_lookup_whatever_it_sends() -> None:
    reader, stranger = node("b"), node("s", PacketKeys(packet_key(b"s" * 32)))
    for each in (b"", b"C", PLAIN, *stranger.seal([PLAIN]), packets.HEAD + NEW.id, packets.HEAD + bytes(60)):
        assert reader.open(each) is None
    assert reader.refused == 6
    assert node("x", None).seal([PLAIN]) == []
    assert node("x", None).open(node("a").seal([PLAIN])[0]) is None
    assert refusal(node("a").seal([PLAIN])[0]) == {"packet": 1}  # A node whose network is open.


def test_nothing_is_read_twice_and_what_comes_late_is_read_within_the_window() -> None:
    sender, reader = node("a"), node("b")
    sent = sender.seal([PLAIN] * (packets.WINDOW + 2))
    assert reader.open(sent[-1]) == (PLAIN, b"")
    assert [reader.open(each) is None for each in (sent[-1], sent[0], sent[1], sent[2])] == [True, True, True, False]
    assert [reader.open(each) is None for each in (sent[2], sent[-3], sent[-3])] == [True, False, True]


def test_an_old_secret_uses_up_no_counters_of_a_member() -> None:
    sender, reader = node("a"), node("b")
    first, *_, last = sender.seal([PLAIN] * 2_000)
    forged = packets.HEAD + OLD.id + last[7:19]
    plain = ChaCha20Poly1305(OLD.secret).encrypt(last[7:19], PLAIN[3:], forged)
    assert reader.open(forged + plain) == (PLAIN, OLD.id)
    assert reader.open(first) == (PLAIN, b"")


def test_a_datagram_to_one_node_is_refused_by_others() -> None:
    (sealed,) = node("a").seal([PLAIN], to=b"b")
    assert node("b").open(sealed) == (PLAIN, b"")
    assert refusal((node("c").open(sealed) or (b"", b""))[0]) == {"packet": 1}


def test_no_nonce_is_used_twice_before_the_counter_ends_nor_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "_TO_ONE", 4)
    sender, reader = node("a"), node("b")
    sent = [sender.seal([PLAIN], to=b"b" if at % 2 else b"")[0] for at in range(10)]
    assert len({each[7:18] + bytes([each[18] & 3]) for each in sent}) == 10
    assert [reader.open(each) for each in sent] == [(PLAIN, b"")] * 10


def test_windows_of_keys_that_end_are_dropped_and_others_are_kept() -> None:
    sender, reader = node("a"), node("b")
    (sealed,) = sender.seal([PLAIN])
    reader.open(sealed)
    reader.rekey(PacketKeys(packet_key(b"m" * 32), (NEW,)))
    assert reader.open(sealed) is None  # It came before.
    assert reader.open(sender.seal([PLAIN])[0]) == (PLAIN, NEW.id)


def test_keys_say_nothing_of_their_secrets() -> None:
    assert NEW.secret.hex() not in repr(KEYS)
    assert repr(NEW.secret) not in repr(KEYS)
    assert NEW.id.hex() in repr(KEYS)


def test_addresses_under_older_keys_say_so() -> None:
    assert packets.parted(packets.under("192.0.2.1:5", NEW.id)) == ("192.0.2.1:5", NEW.id)
    assert packets.parted("192.0.2.1:5") == ("192.0.2.1:5", b"")
    assert [packets.is_old(each) for each in ("a", packets.under("a", NEW.id))] == [False, True]
