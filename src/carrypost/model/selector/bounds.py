"""Bounds of all selectors. These are constants of the wire version, not settings.

Both sides of a contact have to come to the same answer for a selector; otherwise one would offer for ever what the
other does not want. So the bounds are the same on every node, and no program may make a selector beyond them.
"""

from __future__ import annotations

TEXT_MAX = 65_536
"""Length of a text in characters. What is sent is shorter: see `Limits.selector_bytes_max`."""
DEPTH_MAX = 32
"""Nesting depth of parentheses, NOT and signs."""
STEPS_MAX = 16_384
"""Weight of a selector, see `tree.weight`, and of all selectors of a profile together. A step was measured to take 0.1
to 0.3 microseconds, so that these take up to 6 milliseconds for a descriptor; the patterns of a profile take 7 to 10 at
worst (`carrypost bench hostile`)."""
