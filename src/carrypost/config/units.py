"""Sizes and lengths of time, as settings count them."""

KIB = 1024
MIB = 1024 * KIB
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
YEAR_S = 365 * DAY_S
UNBOUNDED = 2**53
"""As good as no limit: the largest whole number that every format we speak keeps exactly."""
