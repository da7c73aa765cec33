"""Bounds of selectors, whoever wrote them. These are constants of the wire version, not settings.

Both sides of a contact have to come to the same answer for a selector, else one would offer for ever what the other
does not want. So what a stranger's selector may be is the same on every node, and nobody may make one beyond it.
"""

from __future__ import annotations

TEXT_MAX = 65_536
"""Characters of a text. What travels is shorter: see `Limits.selector_bytes_max`."""
DEPTH_MAX = 32
"""Parentheses, NOT and signs inside each other."""
STEPS_MAX = 16_384
"""Weight of a selector, see `tree.weight`, and of all selectors of a profile together. A step was measured to take
0.1 to 0.3 microseconds, so that these take up to 6 milliseconds for a descriptor; the patterns of a profile take 7 to
10 at worst (`carrypost bench hostile`)."""
