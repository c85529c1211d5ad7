"""Pickles of arrays, lists, dictionaries, strings and numbers; one that asks for
anything else is refused and runs nothing.
"""

import io
import pickle
from typing import Any

import numpy as np

# Functions that make an array and a number of NumPy again. Taken from two that exist,
# because the module that has these functions is private, and NumPy 2 has moved it.
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_SCALAR = np.float64(0).__reduce__()[0]

ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def loaded(content: bytes, encoding: str = "ASCII") -> Any:
    """Return the content of a pickle.

    encoding: of the strings of Python 2. Raises UnpicklingError where the pickle asks
    for anything but ALLOWED, and any other exception where it is damaged.
    """
    return _Unpickler(io.BytesIO(content), encoding=encoding).load()
