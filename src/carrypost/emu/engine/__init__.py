"""Plays a scenario: hosts, links, faults and the applications, in virtual time."""
