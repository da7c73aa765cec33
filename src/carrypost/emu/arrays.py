"""Types of numpy arrays, in one word each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
"""Positions in a list of names."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
