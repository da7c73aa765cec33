"""Circles: groups of nodes whose topics only members can read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.support.circle_search import CircleSearch
from tests.support.letters import SIGNED, next_text, on_air, stored

from carrypost import Context, IllegalArgumentException, IllegalStateException, InvalidDestinationException, testing
from carrypost.errors import ForgeryError
from carrypost.model import address
from carrypost.model.ids import node_bytes
from carrypost.security import circle as values
from carrypost.security import codes, hpke, sealing
from carrypost.security.circle import Charter, Code, Epoch, Invitation
from carrypost.security.identity import Identity, derived

DAY_S = 86_400.0
ROOT = Identity.from_seed(b"root".ljust(32, b"."))
NODES = [Identity.from_seed(f"node {at}".encode().ljust(32, b".")) for at in range(4)]
PRIVATES = [bytes([at + 1]) * 32 for at in range(4)]
EPOCH = Epoch(3, b"s" * 32)
PLANS = "circle/rescue/plans"


def play(scene: Callable[[], Coroutine[Any, Any, None]], limit_s: float = DAY_S) -> None:
    """Run a scene in virtual time."""
    testing.run(scene, limit_s=limit_s)


def network(*names: str, **settings: Any) -> testing.Network:  # noqa: ANN401 - settings of any type
    """Return a network whose nodes sign."""
    return testing.network(*names, **SIGNED | settings)


# -------------------------------------------------------------------------------------------------- values


def charter(number: int = 1, **changes: Any) -> Charter:  # noqa: ANN401 - fields of any type
    """Return a charter with two members and one invitation."""
    entropy = derived(1, "root", number)
    assert isinstance(ROOT.author, bytes)
    keys = {each.node: hpke.public_of(private) for each, private in zip(NODES[:2], PRIVATES, strict=False)}
    invited, removed = Invitation(hpke.public_of(PRIVATES[2]), 10**15), (node_bytes(NODES[3].node),)
    made = values.charter_of(ROOT.author, EPOCH, keys, (invited,), entropy, date_us=5, removed=removed)
    return msgspec.structs.replace(made, number=number, **changes)


def keys_of(*privates: bytes) -> dict[bytes, bytes]:
    """Return private keys by their ids."""
    return {sealing.key_id(hpke.public_of(each)): each for each in privates}


def test_a_charter_gives_its_secret_to_members_and_invitations_alone() -> None:
    signed = values.read_charter(values.sign(ROOT, charter()).encoded, ROOT.node)
    assert [values.epoch_of(signed, keys_of(each)) for each in PRIVATES] == [EPOCH, EPOCH, EPOCH, None]
    assert values.epoch_of(signed, keys_of(*PRIVATES)) == EPOCH
    assert values.epoch_of(signed, {}) is None


def test_every_changed_or_missing_byte_of_a_charter_is_refused() -> None:
    encoded = values.sign(ROOT, charter()).encoded
    changed = [encoded[:at] + bytes([encoded[at] ^ 0x15]) + encoded[at + 1 :] for at in range(0, len(encoded), 3)]
    for each in [*changed, *(encoded[:cut] for cut in range(0, len(encoded), 29)), encoded + b"x"]:
        with pytest.raises(ForgeryError):
            values.read_charter(each, ROOT.node)


def test_a_charter_that_a_member_signed_or_that_is_too_large_or_lies_about_its_secret_is_refused() -> None:
    with pytest.raises(ForgeryError):
        values.read_charter(values.sign(NODES[0], charter()).encoded, ROOT.node)
    many = tuple(values.Member(at.to_bytes(16, "big")) for at in range(values.MEMBERS_MAX + 1))
    with pytest.raises(ForgeryError):
        values.read_charter(values.sign(ROOT, charter(members=many)).encoded, ROOT.node)
    with pytest.raises(ForgeryError):
        values.read_charter(bytes(values.CHARTER_BYTES_MAX + 1), ROOT.node)
    lying = values.read_charter(values.sign(ROOT, charter(epoch_id=bytes(8))).encoded, ROOT.node)
    with pytest.raises(ForgeryError):
        values.epoch_of(lying, keys_of(PRIVATES[0]))


def test_of_two_charters_the_higher_number_counts_then_the_hash() -> None:
    first, second = values.sign(ROOT, charter(1)), values.sign(ROOT, charter(2))
    assert first.rank < second.rank
    twin = values.sign(ROOT, charter(2, date_us=6))
    assert (twin.rank < second.rank) is not (second.rank < twin.rank)


def test_a_charter_for_100_members_wraps_again_only_what_changed() -> None:
    assert isinstance(ROOT.author, bytes)
    keys = {Identity.from_seed(bytes([at]) * 32).node: hpke.public_of(bytes([at + 1]) * 32) for at in range(100)}
    drawn: list[int] = []

    def entropy(nbytes: int) -> bytes:
        drawn.append(nbytes)
        return bytes([len(drawn)]) * nbytes

    before = values.charter_of(ROOT.author, EPOCH, keys, (), entropy)
    assert len(drawn) == 100
    more = keys | {NODES[0].node: hpke.public_of(PRIVATES[0])}
    after = values.charter_of(ROOT.author, EPOCH, more, (), entropy, before=before)
    assert (len(drawn), after.number) == (101, 2)
    assert {*before.members} < {*after.members}


def test_codes_say_everything_and_fit_a_qr_code() -> None:
    assert isinstance(ROOT.author, bytes)
    code = Code(ROOT.author, b"t" * 16, EPOCH, PRIVATES[2], 2_000 * 10**6, "a" * values.NAME_MAX)
    text = values.code_of(code, None, derived(1, "x", 1))
    assert len(text) <= 250
    assert values.read_code(text, NODES[0].node, {}, 0) == code
    with pytest.raises(IllegalArgumentException, match="out of date"):
        values.read_code(text, NODES[0].node, {}, 2_000 * 10**6)
    with pytest.raises(IllegalArgumentException, match="typed wrong"):
        values.read_code(text[:40] + ("B" if text[40] != "B" else "C") + text[41:], NODES[0].node, {}, 0)
    assert PRIVATES[2].hex() not in repr(code)
    public = hpke.public_of(PRIVATES[0])
    card = codes.read_card(codes.card_of(NODES[0], sealing.SealingKey(public, 3_000 * 10**6)), 0)
    sealed = values.code_of(code, card, derived(1, "x", 2))
    own = {sealing.key_id(public): PRIVATES[0]}
    assert values.read_code(sealed, NODES[0].node, own, 0) == code
    with pytest.raises(IllegalArgumentException, match="for another node"):
        values.read_code(sealed, NODES[1].node, own, 0)
    with pytest.raises(IllegalArgumentException, match="old key"):
        values.read_code(sealed, NODES[0].node, {}, 0)
    with pytest.raises(IllegalArgumentException, match="not a code of a circle"):
        values.read_code(codes.card_of(NODES[0], sealing.SealingKey(public, 1)), NODES[0].node, own, 0)


@pytest.mark.parametrize(
    ("wanted", "topic", "matches"),
    [("plans", "plans", True), ("plans.*", "plans.north", True), ("plans.>", "plans.a.b", True),
     ("plans.*", "plans.a.b", False), ("*.north", "plans.north", True), ("plans", "plan", False)],
)  # fmt: skip
def test_wildcards_match_tags_as_they_match_names(wanted: str, topic: str, matches: bool) -> None:
    import re  # noqa: PLC0415 - one test alone

    levels = address.levels_of(address.parted_circle(address.topic_pattern(wanted, "circle/rescue/"))[1])
    pattern = address.sealed_pattern(ROOT.node, levels, lambda level: values.tag(b"k" * 16, level))
    sealed = values.sealed_topic(ROOT.node, b"k" * 16, topic)
    assert bool(re.fullmatch(pattern, sealed)) is matches


# ------------------------------------------------------------------------------------------------ networks


async def rescue(net: testing.Network, *members: str) -> dict[str, Context]:
    """Let the first found a circle and the others join; all nodes are linked in a line."""
    contexts = {each: await net.context(each) for each in members}
    net.found(members[0], "rescue")
    for each in members[1:]:
        net.join(each, net.invite(members[0], "rescue"))
    for one, two in pairwise(members):
        net.link(one, two)
    await net.run(60)
    return contexts


def test_members_read_and_nobody_else_sees_body_properties_or_name() -> None:
    async def scene() -> None:
        with on_air() as datagrams:
            async with network("a", "b", "x", "c", encoded=True) as net:
                contexts = {each: await net.context(each) for each in "abxc"}
                net.found("a", "rescue")
                code = net.invite("a", "rescue")
                for one, two in ("ab", "bx", "xc"):
                    net.link(one, two)
                for each in "bc":
                    net.join(each, code)
                inboxes = [await contexts[each].create_consumer("circle/rescue/plans.>", "urgent") for each in "bc"]
                await net.run(60)
                for urgent in (True, False):
                    sent = await contexts["a"].send(
                        "circle/rescue/plans.northbridge", "bridge at six", properties={"urgent": urgent, "who": "anna"}
                    )
                    assert sent.sealed == "rescue"
                for inbox in inboxes:
                    got = await inbox.receive(timeout=120)
                    assert got is not None
                    assert (got.text, got.sealed, got.get_string_property("who")) == ("bridge at six", "rescue", "anna")
                    assert str(got.jms_destination) == "circle/rescue/plans.northbridge"
                    assert await inbox.receive(timeout=10) is None
                for secret in (b"bridge at six", b"northbridge", b"anna", b"urgent = "):
                    assert secret not in stored(net, "x")
                    assert not any(secret in each for each in datagrams)

    play(scene)


def test_causal_order_durable_subscriptions_and_restarts_are_as_with_plain_topics() -> None:
    async def scene() -> None:
        async with network("a", "b", "c") as net:
            contexts = await rescue(net, "a", "b", "c")
            ordered = f"{PLANS}?order=causal"
            inbox = await contexts["c"].create_shared_durable_consumer(ordered, "mine")
            answers = await contexts["b"].create_consumer(ordered)
            await net.run(20)
            net.unlink("b", "c")
            await contexts["a"].send(ordered, "question")
            question = await answers.receive(timeout=60)
            assert question is not None
            await contexts["b"].send(ordered, "answer")
            await inbox.close()
            net.kill("c")
            net.restart("c")
            await net.run(5)
            net.link("b", "c")
            await net.run(60)
            c = await net.context("c")
            inbox = await c.create_shared_durable_consumer(ordered, "mine")
            got = [await inbox.receive(timeout=60) for _ in range(2)]
            assert [each and each.text for each in got] == ["question", "answer"]

    play(scene)


def test_a_removed_node_reads_nothing_further_and_nothing_of_it_is_opened() -> None:
    async def scene() -> None:
        async with network("a", "b", "c") as net:
            contexts = await rescue(net, "a", "b", "c")
            code = net.invite("a", "rescue")
            inboxes = {each: await contexts[each].create_consumer(PLANS) for each in "abc"}
            await net.run(30)
            net.remove("a", "rescue", "c")
            await net.run(60)
            await contexts["a"].send(PLANS, "after")
            assert [each.text for each in [await inboxes["b"].receive(timeout=60)] if each] == ["after"]
            assert await inboxes["c"].receive(timeout=60) is None
            with pytest.raises(IllegalStateException, match="was removed"):
                await contexts["c"].send(PLANS, "from c")
            assert contexts["c"].node_id not in net.members("b", "rescue")
            # A bare code that it had kept is worth nothing, also under a new key.
            net.add("d")
            net.join("d", code)
            d = await net.context("d")
            await d.send(PLANS, "under a new key")
            net.link("b", "d")
            await net.run(60)
            with pytest.raises(IllegalStateException, match="is not known here yet"):
                await d.send(PLANS, "once more")
            assert await inboxes["b"].receive(timeout=10) is None
            assert net.host("b").overview().refused.get("removed")
            assert d.node_id not in net.members("a", "rescue")

    play(scene)


def test_a_member_that_missed_epochs_reads_on_after_one_contact() -> None:
    async def scene() -> None:
        async with network("a", "b", "c") as net:
            contexts = await rescue(net, "a", "b", "c")
            inbox = await contexts["c"].create_consumer(PLANS)
            await net.run(30)
            net.unlink("b", "c")
            texts = []
            for number in range(3):
                net.rotate("a", "rescue")
                texts.append(f"epoch {number}")
                await contexts["a"].send(PLANS, texts[-1])
                await net.run(20)
            net.link("b", "c")
            await net.run(60)
            got = {await next_text(inbox) for _ in texts}
            assert got == set(texts)

    play(scene)


def test_two_owners_that_removed_others_while_apart_end_with_both_removed() -> None:
    async def scene() -> None:
        async with network("a", "b", "c", "d") as net:
            contexts = await rescue(net, "a", "b", "c", "d")
            root = await contexts["a"].circles.export("rescue")
            code = net.invite("a", "rescue")
            with pytest.raises(IllegalArgumentException, match="not the root"):
                net.join("b", code, root="ab" * 32)
            net.join("b", code, root=root)
            net.unlink("a", "b")
            net.remove("a", "rescue", "c")
            net.remove("b", "rescue", "d")
            await net.run(60)
            net.link("a", "b")
            await net.run(120)
            for owner in "ab":
                (view,) = net.host(owner).circles.views()
                assert len(view.removed) == 2
                assert len(view.members) == 2
                assert view.readable
            assert net.host("a").circles.views()[0].number == net.host("b").circles.views()[0].number

    play(scene)


def test_plain_text_to_a_circle_is_refused() -> None:
    async def scene() -> None:
        async with network("a", "b", "x") as net:
            contexts = await rescue(net, "a", "b")
            await contexts["b"].create_consumer("circle/rescue/>")
            net.link("b", "x")
            await net.run(30)
            (view,) = net.host("a").circles.views()
            net.publish("x", f"sealed/{view.id}/aaaaaaaa", b"plain")
            await net.run(30)
            assert net.host("b").overview().refused.get("unsealed")

    play(scene)


def test_secrets_of_old_epochs_are_deleted() -> None:
    async def scene() -> None:
        quiet = {"announce_s_min": 3600.0, "announce_s_max": 3600.0}
        async with network("a", lifetime_s_max=DAY_S, lifetime_s_default=DAY_S, **quiet) as net:
            net.found("a", "rescue")

            def epochs() -> set[bytes]:
                rows = net._driver("a").store.state()  # noqa: SLF001 - this is the thief
                return {key[1] for key, _ in rows if key[0] == "sealing" and key[1][:1] == b"E"}

            first = epochs()
            await net.run(30.5 * DAY_S)
            assert len(epochs()) == 2  # An owner begins one each month.
            await net.run(DAY_S)
            assert not first & epochs()

    play(scene, 40 * DAY_S)


def test_mistakes_are_reported_in_their_own_words() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            contexts = await rescue(net, "a", "b")
            a, b = contexts["a"], contexts["b"]
            with pytest.raises(InvalidDestinationException, match="not in a circle 'other'; its circles: 'rescue'"):
                await a.send("circle/other/x", "x")
            with pytest.raises(InvalidDestinationException, match="not in a circle 'other'"):
                await a.create_consumer("circle/other/x")
            with pytest.raises(IllegalArgumentException, match="leave recipients out"):
                await a.send(PLANS, "x", recipients=[b.node_id])
            with pytest.raises(IllegalArgumentException, match="leave sealed=False out"):
                await a.send(PLANS, "x", sealed=False)
            with pytest.raises(IllegalArgumentException, match="leave model or circle out"):
                a.create_topic("x", model="channel", circle="rescue")
            with pytest.raises(IllegalArgumentException, match="takes no patterns"):
                await a.create_consumer(PLANS, patterns={"x": "y"})
            with pytest.raises(InvalidDestinationException, match="circle/CIRCLE/NAME"):
                await a.send("circle/rescue", "x")
            with pytest.raises(IllegalStateException, match="no owner"):
                await b.circles.invite("rescue")
            with pytest.raises(IllegalStateException, match="already"):
                await a.circles.found("rescue")
            with pytest.raises(IllegalArgumentException, match="no member"):
                await a.circles.remove("rescue", "a" * 26)
            with pytest.raises(IllegalArgumentException, match="cannot remove itself"):
                await a.circles.remove("rescue", a.node_id)
            with pytest.raises(IllegalArgumentException, match="up to 30 days"):
                await a.circles.invite("rescue", days=31)
            for name in ("", "a.b", "a/b", "x" * 25):
                with pytest.raises(IllegalArgumentException, match="the name of a circle"):
                    await a.circles.found(name)
            code = await a.circles.invite("rescue", to=await b.card())
            with pytest.raises(IllegalArgumentException, match="for another node"):
                await a.circles.join(code)
            assert await b.circles.join(code) == "rescue"
            await b.circles.leave("rescue")
            with pytest.raises(InvalidDestinationException, match="not in a circle"):
                await b.send(PLANS, "x")
        async with testing.network("p") as net:
            p = await net.context("p")
            with pytest.raises(IllegalStateException, match='security = "signed"'):
                await p.circles.found("rescue")

    play(scene)


@pytest.mark.parametrize("seed", range(16))
def test_every_reader_of_a_circle_gets_what_its_epochs_allow_and_nobody_else_anything(seed: int) -> None:
    play(lambda: CircleSearch(seed).play(seed))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 600))
def test_readers_of_circles_in_many_networks(seed: int) -> None:
    play(lambda: CircleSearch(seed).play(seed))


@pytest.mark.parametrize("destination", [PLANS, "queue"])
def test_an_author_sees_its_own_message_as_other_readers_open_it(destination: str) -> None:
    async def scene() -> None:
        async with network("a") as net:
            a = await net.context("a")
            net.found("a", "rescue")
            to = destination
            if to == "queue":
                to = f"queue/{(await a.declare_queue('Alan')).queue_name}"
            await a.send(to, "body " * 100, properties={"x": 1}, label="mine", jms_type="T", priority=7)
            (copy,) = [each for each in net.host("a")._holdings.known_copies() if each.opened is not None]  # noqa: SLF001
            assert copy.opened is not None
            assert copy.opened.unsealed is not None
            key, circle = copy.opened.unsealed.key, copy.opened.unsealed.circle
            seal, secret = sealing.seal_of(copy.descriptor), copy.opened.unsealed.secret
            again = sealing.opened(copy.descriptor, seal, key, secret, circle)[0]
            assert again == copy.opened
            assert (again.id, again.wire, again.shown) == (copy.opened.id, copy.opened.wire, copy.opened.shown)
            assert again.unsealed == copy.opened.unsealed

    play(scene)


def test_a_durable_subscription_of_a_circle_that_was_left_does_not_outlive_a_restart() -> None:
    async def scene() -> None:
        async with network("a") as net:
            a = await net.context("a")
            net.found("a", "rescue")
            await (await a.create_shared_durable_consumer(PLANS, "mine")).close()
            await (await a.create_shared_durable_consumer("topic/news", "other")).close()
            net.leave("a", "rescue")
            await net.run(5)
            net.kill("a")
            net.restart("a")
            await net.run(5)
            a = await net.context("a")
            overview = net.host("a").messaging.overview()
            assert overview is not None
            assert overview.durable == 1

    play(scene)
