"""Frozen settings, checked when they are made; parses text, never files."""

from carrypost.config.rules import DAY_S, HOUR_S, KIB, MIB, NONE, UNBOUNDED, YEAR_S
from carrypost.config.settings import Limits, Settings, parse
from carrypost.config.tables import ENVIRONMENT_PREFIX, differences, text_form

__all__ = [
    "DAY_S",
    "ENVIRONMENT_PREFIX",
    "HOUR_S",
    "KIB",
    "MIB",
    "NONE",
    "UNBOUNDED",
    "YEAR_S",
    "Limits",
    "Settings",
    "differences",
    "parse",
    "text_form",
]
