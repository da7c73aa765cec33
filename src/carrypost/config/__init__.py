"""Frozen settings, checked when they are made; parses text, never files."""

from carrypost.config.rules import DAY_S, HOUR_S, KIB, MIB, UNBOUNDED, YEAR_S, differences, text_form
from carrypost.config.settings import MTU_BYTES_MIN, Limits, Settings, parse

__all__ = [
    "DAY_S",
    "HOUR_S",
    "KIB",
    "MIB",
    "MTU_BYTES_MIN",
    "UNBOUNDED",
    "YEAR_S",
    "Limits",
    "Settings",
    "differences",
    "parse",
    "text_form",
]
