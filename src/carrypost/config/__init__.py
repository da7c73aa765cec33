"""Frozen settings, checked when they are made; parses text, never files."""

from carrypost.config.rules import differences, text_form
from carrypost.config.settings import MTU_BYTES_MIN, Limits, Settings, parse
from carrypost.config.units import DAY_S, HOUR_S, KIB, MIB, UNBOUNDED, YEAR_S

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
