"""The rows of JMS and those of queues once more, with all letters sealed, and on the topics of a circle.

The same tests are run by another process. Those that then end otherwise are listed with the reason; `docs/sealing.md`
has what users notice of it.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = (
    "test_jms_rows_bodies", "test_jms_rows_headers", "test_jms_rows_properties", "test_jms_rows_queues",
    "test_jms_rows_selectors", "test_jms_rows_sending", "test_jms_rows_sessions", "test_jms_rows_topics",
    "test_jms_queues", "test_jms_queue_receivers", "test_jms_queue_journeys",
)  # fmt: skip
DIFFERENCES = {
    "scenes begin a minute later, when keys are known, and read the clock": """
        test_a_browser_that_is_never_answered_ends_after_an_hour_or_when_too_many_wait
        test_row_100_completion_listeners_are_told_in_order_one_at_a_time_and_close_waits_for_them
        test_row_12_sending_overwrites_what_a_program_gave_the_providers_fields
        test_row_4_the_timestamp_lies_between_the_call_and_the_return_of_send
        test_row_59_stop_waits_for_the_listener_that_is_being_called
        test_row_75_listeners_of_a_context_are_called_one_at_a_time_and_those_of_others_beside_them
        test_row_78_what_matters_more_goes_first_then_what_is_older
        test_row_80_receive_waits_and_receive_no_wait_takes_what_is_here
        test_row_85_a_request_has_an_end
        test_row_85_a_request_returns_a_handle_and_the_reply_is_found_by_its_correlation_id
        test_row_87_non_persistent_messages_may_be_lost_in_a_crash_and_do_not_wait_for_the_disk
        test_row_98_contexts_share_a_connection_which_the_last_of_them_closes
        """,
    "copies are counted, of which some have keys and charters, and a cache of few messages is full of them": """
        test_row_11_a_delayed_message_travels_and_is_seen_nowhere_before_its_time
        test_row_14_dates_from_the_future_are_bounded_and_a_deadline_holds_by_the_receivers_clock
        test_row_27_what_is_not_selected_never_enters_a_subscription_and_is_not_sent_to_its_node
        test_row_87_non_persistent_messages_give_way_first
        test_row_88_a_programs_own_rule_says_which_messages_matter_more
        test_row_90_a_live_subscription_lasts_while_a_consumer_is_open
        """,
    "nodes that sign have other ids, in texts and in lists, and messages have an author in JMSXUserID": """
        test_a_node_that_heard_whom_a_queue_is_for_is_told_at_once
        test_a_queue_gives_messages_to_the_nodes_that_it_names_and_to_its_own
        test_a_short_name_of_several_queues_tells_who_they_are
        test_row_20_properties_are_listed_and_header_fields_are_not
        test_row_23_groups_travel_and_this_node_says_when_a_message_came
        test_row_83_a_queue_is_used_after_it_was_declared
        """,
    "payloads are padded and have a tag, so fewer fit into a queue": """
        test_a_queue_that_is_full_says_so_and_takes_more_when_it_has_room
        """,
    "with `always` nothing is sent to a node that was never met": """
        test_who_waits_for_a_reply_is_told_when_the_context_closes
        """,
    "a circle's topics take no patterns": """
        test_row_103_every_error_is_a_jms_exception_with_a_code_and_its_cause
        test_row_91_another_topic_selector_or_no_local_makes_it_anew
        test_row_97_patterns_of_other_attributes_are_regular_expressions
        """,
}


SAMPLE = {
    "test_jms_rows_headers": ("test_row_7_what_comes_again_is_flagged",),
    "test_jms_rows_queues": (
        "test_row_78_each_message_goes_to_one_consumer_and_they_share_fairly",
        "test_row_81_a_browser_elsewhere_sees_a_snapshot_and_its_age",
    ),
    "test_jms_rows_topics": (
        "test_row_91_a_durable_subscription_collects_while_nobody_consumes",
        "test_row_94_no_local_leaves_out_what_its_own_connection_sends",
        "test_row_97_names_have_levels_and_consumers_may_ask_for_many",
    ),
}
"""Rows that are run in each `make test`."""


@pytest.mark.parametrize("mode", ["letters", "circle"])
def test_some_rows_hold_for_what_is_sealed(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_SEALED", mode)
    # Other modules keep the scenes that they imported; these rows get scenes of their own, for now.
    for package, name in (("support", "jms_scenes"), *(("jms", name) for name in SAMPLE)):
        importlib.import_module(f"tests.{package}.{name}")
        monkeypatch.setattr(sys.modules[f"tests.{package}"], name, None, raising=False)
        monkeypatch.setitem(sys.modules, f"tests.{package}.{name}", None)
        del sys.modules[f"tests.{package}.{name}"]
    for name, rows in SAMPLE.items():
        module = importlib.import_module(f"tests.jms.{name}")
        for row in rows:
            getattr(module, row)()


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["letters", "circle"])
def test_what_is_sealed_is_used_as_what_is_not(mode: str) -> None:
    folder = Path(__file__).parents[1] / "jms"
    done = subprocess.run(  # noqa: S603 - our own tests
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(folder / f"{row}.py") for row in ROWS)],
        env={**os.environ, "TESTS_SEALED": mode}, cwd=folder.parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout + done.stderr
    assert int(passed[1]) > 300
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE))
    assert failed <= {name for names in DIFFERENCES.values() for name in names.split()}
