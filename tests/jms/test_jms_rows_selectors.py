"""Rows 26 to 46 of the checklist: selectors of consumers, which take the same on the sender's node and elsewhere.

Each case is a selector with messages that it takes and such that it leaves; more of the language is in the tables of
`test_selector_table`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, Pair, pair, scene, texts

from carrypost import DeliveryMode, InvalidSelectorException, Message, TextMessage, testing

ROWS = range(26, 47)
Properties = Mapping[str, bool | int | float | str | None]


async def check(both: Pair, selector: str, takes: list[Properties], leaves: list[Properties]) -> None:
    messages: list[Message] = []
    for properties in (*takes, *leaves):
        message = TextMessage()
        message.properties.update(properties)
        messages.append(message)
    assert await both.selected(selector, messages) == messages[: len(takes)], selector


async def check_refused(both: Pair, *selectors: str) -> None:
    for selector in selectors:
        with pytest.raises(InvalidSelectorException):
            await both.here.create_consumer(NEWS, selector)
    overview = both.net.host("a").messaging.overview()
    assert overview is not None
    assert overview.consumers == 0


@scene("a", "b")
async def test_row_26_a_selector_is_checked_at_creation_and_a_blank_one_is_none(net: testing.Network) -> None:
    async with pair(net) as both:
        await check_refused(both, "a =", "x = 'y' AND ( OR )", "a == 1", "5")
        with pytest.raises(InvalidSelectorException) as fault:
            await both.here.create_consumer(NEWS, "a = 1 AND b ~ 2")
        assert fault.value.position == 13
        for blank in ("", "  ", "\n"):
            await check(both, blank, [{"a": 1}, {}], [])
        async with both.here.create_consumer(NEWS, " ") as consumer:
            assert consumer.message_selector in (None, " ")
        with pytest.raises(InvalidSelectorException, match="bad"):
            both.here.listener(NEWS, "((( bad")


@scene("a", "b")
async def test_row_27_what_is_not_selected_never_enters_a_subscription_and_is_not_sent_to_its_node(
    net: testing.Network,
) -> None:
    async with pair(net, b="me") as both:
        async with both.there.create_durable_consumer(NEWS, "mail", "language = 'French'"):
            await net.run(10)  # The author's node hears of it.
        producer = both.here.create_producer()
        for language in ("English", "French", "English"):
            await producer.set_property("language", language).send(NEWS, language)
        await net.run(SOON_S)
        overview = net.host("b").messaging.overview()
        assert overview is not None
        assert (net.host("b").copies, overview.claims) == (1, 1)
        async with both.there.create_durable_consumer(NEWS, "mail", "language = 'French'") as mail:
            assert await texts(mail) == ["French"]


CASES: dict[int, tuple[str, list[tuple[str, list[Properties], list[Properties]]]]] = {
    28: (
        "strings_have_single_quotes_doubled_within_and_any_character",
        [("q = 'it''s'", [{"q": "it's"}], [{"q": "it''s"}, {}]), ("n = '花子😀'", [{"n": "花子😀"}], [{"n": "花子"}])],
    ),
    29: (
        "exact_numbers_are_decimal_hexadecimal_or_octal_and_may_be_long",
        [
            ("a = 0x1d", [{"a": 29}], [{"a": 30}]), ("a = 035", [{"a": 29}], [{"a": 35}]),
            ("a = 9223372036854775807L", [{"a": 2**63 - 1}], [{"a": -1}]),
        ],
    ),
    30: (
        "approximate_numbers_have_points_exponents_and_suffixes",
        [
            ("a = 7.", [{"a": 7}, {"a": 7.0}], [{"a": 7.5}]), ("a = .7e4", [{"a": 7000}], [{"a": 0.7}]),
            ("a = -57.9E2", [{"a": -5790.0}], [{"a": 5790.0}]), ("a = 2.5d", [{"a": 2.5}], [{}]),
        ],
    ),
    31: (
        "booleans_are_written_in_any_case_and_a_boolean_is_a_condition",
        [("a = TrUe", [{"a": True}], [{"a": False}, {"a": "true"}]), ("a", [{"a": True}], [{"a": False}, {"a": 1}])],
    ),
    32: (
        "identifiers_are_those_of_java_and_case_matters",
        [("$a = 1 AND größe > _b", [{"$a": 1, "größe": 3, "_b": 2}], [{"$A": 1, "größe": 3, "_b": 2}])],
    ),
    35: (
        "a_property_is_not_converted",
        [("a > 1", [{"a": 2}], [{"a": "2"}]), ("a = '2'", [{"a": "2"}], [{"a": 2}])],
    ),
    36: (
        "like_is_compared_with_like_and_null_is_unknown",
        [
            ("a = 1", [{"a": 1}, {"a": 1.0}], [{"a": "1"}, {"a": True}, {}]),
            ("a <> 1", [{"a": 2}], [{"a": "2"}, {}]), ("NOT (a = 1)", [{"a": 2}, {"a": "1"}], [{"a": 1}, {}]),
        ],
    ),
    37: (
        "texts_and_booleans_are_equal_or_not_and_have_no_order",
        [("a = b", [{"a": "x", "b": "x"}], [{"a": "x", "b": "y"}]), ("a < b", [], [{"a": "x", "b": "y"}])],
    ),
    38: (
        "arithmetic_is_that_of_java_and_division_by_zero_unknown",
        [
            ("a / 2 = 61", [{"a": 123}], [{"a": 121}]), ("-a / 2 = -3", [{"a": 7}], [{"a": 8}]),
            ("a + 1 < 0", [{"a": 2**63 - 1}], [{"a": 5}]), ("1 / a = 1 OR b", [{"a": 0, "b": True}], [{"a": 0}]),
            ("a * 2 - 1 + b = 6", [{"a": 3, "b": 1}], [{"a": 3, "b": 2}]),
        ],
    ),
    39: (
        "between_includes_its_bounds",
        [
            ("a BETWEEN 2 AND 4", [{"a": 2}, {"a": 3.5}, {"a": 4}], [{"a": 5}, {"a": "3"}, {}]),
            ("a NOT BETWEEN 2 AND 4", [{"a": 5}], [{"a": 4}, {}]),
        ],
    ),
    40: (
        "in_lists_texts",
        [
            ("a IN ('x', 'y')", [{"a": "x"}, {"a": "y"}], [{"a": "z"}, {"a": 1}, {}]),
            ("a NOT IN ('x')", [{"a": "y"}], [{"a": "x"}, {}]),
        ],
    ),
    41: (
        "like_has_wildcards_and_an_escape",
        [
            ("a LIKE '1_3%'", [{"a": "123"}, {"a": "1.3\nx"}], [{"a": "13"}, {"a": "0123"}, {}]),
            (r"a LIKE '\_%' ESCAPE '\'", [{"a": "_x"}], [{"a": "xx"}]),
            ("a LIKE '__x' ESCAPE '_'", [{"a": "_x"}], [{"a": "xx"}]),
            ("a NOT LIKE 'x%'", [{"a": "y"}], [{"a": "x"}, {}]),
        ],
    ),
    42: (
        "null_can_be_asked_for",
        [
            ("a IS NULL", [{}, {"a": None}], [{"a": 0}]), ("a IS NOT NULL", [{"a": False}], [{}, {"a": None}]),
        ],
    ),
    43: (
        "only_what_is_true_is_taken",
        [
            ("a OR b = 1", [{"a": True}, {"b": 1}], [{"a": False}, {}]),
            ("NOT a AND b = 1", [{"a": False, "b": 1}], [{"b": 1}, {"a": False}]),
        ],
    ),
    44: (
        "not_binds_before_and_before_or",
        [
            ("a OR b AND c", [{"a": True}, {"b": True, "c": True}], [{"b": True}]),
            ("(a OR b) AND c", [{"a": True, "c": True}], [{"a": True}]),
            ("NOT a OR b", [{"a": False}, {"a": True, "b": True}], [{"a": True}]),
        ],
    ),
}  # fmt: skip


def _case(row: int) -> object:
    @scene("a", "b")
    async def test(net: testing.Network) -> None:
        async with pair(net) as both:
            for selector, takes, leaves in CASES[row][1]:
                await check(both, selector, takes, leaves)

    return test


for _row, (_name, _) in CASES.items():
    globals()[f"test_row_{_row}_{_name}"] = _case(_row)


@scene("a", "b")
async def test_row_32_reserved_words_are_no_identifiers(net: testing.Network) -> None:
    async with pair(net) as both:
        await check_refused(both, "not = 1", "Between = 1", "a.b = 1", "1a = 1")


@scene("a", "b")
async def test_row_33_six_header_fields_can_be_selected_and_others_not(net: testing.Network) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        message.jms_correlation_id, message.jms_type = "c", "t"
        for selector in (
            "JMSDeliveryMode = 'PERSISTENT'", "JMSPriority = 4", "JMSMessageID LIKE 'ID:%'", "JMSTimestamp >= 0",
            "JMSCorrelationID = 'c'", "JMSType = 't'",
        ):  # fmt: skip
            assert await both.selected(selector, [message]) == [message]
            assert await both.selected(f"NOT ({selector})", [message]) == []
        await check_refused(both, "JMSExpiration > 0", "JMSRedelivered", "JMSDestination = 'x'", "JMSReplyTo IS NULL")


@scene("a", "b")
async def test_row_34_the_delivery_mode_is_compared_as_text(net: testing.Network) -> None:
    async with pair(net) as both, both.there.create_consumer(NEWS, "JMSDeliveryMode = 'NON_PERSISTENT'") as far:
        for mode in DeliveryMode:
            await both.here.create_producer().set_delivery_mode(mode).send(NEWS, mode.name)
        assert await texts(far) == ["NON_PERSISTENT"]


@scene("a", "b")
async def test_rows_37_39_and_40_literals_of_a_wrong_type_are_refused_at_creation(net: testing.Network) -> None:
    async with pair(net) as both:
        await check_refused(both, "a > 'x'", "a < TRUE", "a BETWEEN 'x' AND 'y'", "a IN (1, 2)", "a IN ()", "a LIKE 5")
        await check_refused(both, "a = 1 // x", "a = 1 /* x */", "a LIKE 'x' ESCAPE 'xy'")


@scene("a", "b")
async def test_row_45_a_float_is_not_the_double_of_the_same_digits(net: testing.Network) -> None:
    single, double = TextMessage("single"), TextMessage("double")
    single.set_float_property("a", 1.1)
    double.set_double_property("a", 1.1)
    async with pair(net) as both:
        assert await both.selected("a = 1.1", [single, double]) == [double]
        assert await both.selected("a = 1.1f", [single, double]) == [single]


@scene("a", "b")
async def test_row_46_selectors_do_not_name_what_a_node_says_on_receipt_since_the_sender_does_not_know_it(
    net: testing.Network,
) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        message.properties["JMSXGroupID"] = "g"
        assert await both.selected("JMSXGroupID = 'g'", [message]) == [message]
        for name in ("JMSXDeliveryCount", "JMSXRcvTimestamp", "JMSXUserID", "JMS_carrypost_Hops", "JMS_carrypost_x"):
            reason = f"{name} is set when a message is received, and messages of a topic are chosen before that"
            with pytest.raises(InvalidSelectorException, match=reason) as told:
                await both.here.create_consumer(NEWS, f"x = 1 OR {name} IS NOT NULL")
            assert told.value.position == 10
            with pytest.raises(InvalidSelectorException, match=reason):
                await both.here.create_durable_consumer(NEWS, "mail", f"{name} = 1")
            with pytest.raises(InvalidSelectorException, match=reason):
                both.here.listener(NEWS, f"{name} = 1")
