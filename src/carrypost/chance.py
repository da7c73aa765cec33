"""Random streams, drawn from the seed of an emulated run.

Every use has a stream of its own, named by (seed, node, purpose): a node that draws more, or joins, changes nothing for
the others. Keys and salts never come from here.
"""

from __future__ import annotations

import hashlib
import random


def stream(seed: int | str, *purpose: str | int) -> random.Random:
    """Return the generator that belongs to this seed and purpose, and to nothing else."""
    name = repr((seed, *purpose)).encode()
    return random.Random(int.from_bytes(hashlib.sha256(name).digest(), "big"))  # noqa: S311 (emulation)
