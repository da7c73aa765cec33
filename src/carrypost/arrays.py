"""Arrays: types of those of numpy, in one word each, and columns of tables in one piece."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
"""Positions in a list of names."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def combined(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column in one piece."""
    return pa.concat_arrays([chunk.cast(kind) for chunk in column.chunks]) if column.num_chunks else pa.array([], kind)
