"""Message selectors: the conditional expressions of JMS (§3.8.1), a subset of SQL-92.

`tokens` and `parser` make a `tree` of a text, with `checks` of what types are known; `closures` makes of it what is
called for a message; `printing` gives its normal form, and `bounds` says what is too much. Programs need `Selector`.
"""

from carrypost.model.selector.bounds import DEPTH_MAX, STEPS_MAX, TEXT_MAX
from carrypost.model.selector.selector import Selector
from carrypost.model.selector.tree import HEADER_PREFIX

__all__ = ["DEPTH_MAX", "HEADER_PREFIX", "STEPS_MAX", "TEXT_MAX", "Selector"]
