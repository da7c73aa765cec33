"""Message selectors: the conditional expressions of JMS (§3.8.1), a subset of SQL-92.

`tokens` and `syntax` make a `tree` of a text, and of a tree its normal form; `evaluation` makes of it what is called
for a message. Programs need `Selector`.
"""

from carrypost.model.selector.selector import Selector
from carrypost.model.selector.syntax import DEPTH_MAX, STEPS_MAX, TEXT_MAX
from carrypost.model.selector.tree import HEADER_PREFIX

__all__ = ["DEPTH_MAX", "HEADER_PREFIX", "STEPS_MAX", "TEXT_MAX", "Selector"]
