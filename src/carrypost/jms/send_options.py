"""Options of one send: the keywords of `Context.send` and `Producer.send`, checked.

An option has the name of a producer's setter: `Producer.set_delivery_delay` sets `delivery_delay` for all messages.
Options that are header fields have the names of the attributes of messages, such as `jms_type`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from carrypost.errors import IllegalArgumentException
from carrypost.jms.durations import microseconds
from carrypost.jms.mapping import Sending
from carrypost.jms.messages import headers
from carrypost.jms.messages.properties import Properties
from carrypost.model.recipient_lists import as_given


def send_options(base: Sending, **given: object) -> Sending:
    """Return `base` with what was given in its place, by keyword; None is not given.

    Raises `IllegalArgumentException` for a value that is none of its kind.
    """
    changes = {}
    for keyword, value in given.items():
        if value is not None:
            field, check = _KEYWORDS[keyword]
            changes[field] = check(keyword, value)
    return msgspec.structs.replace(base, **changes)


def _properties(keyword: str, given: object) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise IllegalArgumentException(f"{keyword} must be a mapping of names to values, not {given!r}"[:200])
    made = Properties()
    made.update(given)
    return made.travelling()


def _duration_us(keyword: str, given: object) -> int:
    return microseconds(given, keyword)


def _limit_us(keyword: str, given: object) -> int | None:
    """Return a time to live or a timeout; None where it is 0: as long as the node's settings say, or without end."""
    return microseconds(given, keyword) or None


def _recipients(_keyword: str, given: object) -> tuple[str, ...]:
    return as_given(given)


_KEYWORDS: Mapping[str, tuple[str, Callable[[str, object], object]]] = {
    "properties": ("properties", _properties),
    "jms_correlation_id": ("correlation_id", headers.correlation),
    "jms_reply_to": ("reply_to", headers.destination),
    "jms_type": ("type", headers.text_or_none),
    "priority": ("priority", headers.priority),
    "time_to_live": ("lifetime_us", _limit_us),
    "delivery_delay": ("delay_us", _duration_us),
    "delivery_timeout": ("receipt_timeout_us", _limit_us),
    "delivery_mode": ("delivery_mode", headers.mode),
    "request_receipt": ("receipt", headers.flag),
    "label": ("label", headers.text_or_none),
    "recipients": ("recipients", _recipients),
    "sealed": ("sealed", headers.flag),
}
"""Of each keyword, the field of `Sending` and what checks the value."""
