"""Thrift: no work is done twice, and bounds hold, even where a violation would go unnoticed."""

from __future__ import annotations

import pytest

from carrypost import testing
from carrypost.gossip.transfers import inbound
from carrypost.model.descriptor import PIECE_BYTES, Descriptor
from carrypost.security.identity import verify


def test_a_signature_is_checked_once_per_message_however_often_its_descriptor_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[bytes] = []

    def counted(found: Descriptor) -> None:
        checked.append(found.id)
        verify(found)

    monkeypatch.setattr(inbound, "verify", counted)
    payload = bytes(range(256)) * (PIECE_BYTES // 256) * 20
    with testing.network("a", "b", security="signed", compress=False, rate_bytes_per_s=50_000) as net:
        net.subscribe("b", "news")
        net.publish("a", "news", payload)
        for _ in range(4):  # Too short for all of it: each contact begins with the descriptor again.
            net.link("a", "b")
            net.advance(5)
            net.unlink("a", "b")
            net.advance(30)
        assert [each.payload for each in net.deliveries("b")] == [payload]
        assert net.sent("a").frames["DescriptorPart"] >= 2
        assert len(checked) == 1


@pytest.mark.parametrize(
    ("limits", "kept"), [({}, 4), ({"unconfirmed_bytes_max": 250}, 2), ({"unconfirmed_max": 3}, 3)]
)
def test_only_so_many_unconfirmed_deliveries_are_held_against_all_comers(limits: dict[str, int], kept: int) -> None:
    """Without a limit of their own they have half of the cache."""
    with testing.network("a", "b", confirm=False, cache_messages_max=8, shares=False, limits=limits) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        for number in range(8):
            net.publish("a", "news", testing.Blank(100), label=f"old {number}", priority=1)
        net.advance(10)
        for number in range(8):
            net.publish("a", "news", testing.Blank(100), label=f"new {number}", priority=9)
        net.advance(10)
        came = {each.descriptor.label for each in net.deliveries("b")}
        assert {f"old {number}" for number in range(8)} <= came
        assert sum(label.startswith("new") for label in came) == 8 - kept


def test_after_a_failed_write_nothing_is_asked_for_until_the_disk_had_time_to_recover() -> None:
    with testing.network("a", "b", push_bytes_max=0) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(20)
        net.fill_disk("b")
        net.publish("a", "news", b"first")
        net.advance(1)
        asked = net.sent("b").frames["Request"]
        sent = net.sent("a").frames["Parcel"]
        net.publish("a", "news", b"second")
        net.advance(3)
        assert net.sent("a").frames["Parcel"] == sent
        assert net.sent("b").frames["Request"] > asked  # It answered; it only asked for nothing.
        net.fill_disk("b", full=False)
        net.advance(120)
        assert len(net.deliveries("b")) == 2
