"""Read pickles that hold only arrays, lists, dictionaries, strings and numbers.

A pickle that names any other object is refused before code runs.
"""

import io
import pickle
from typing import Any

import numpy as np

# NumPy's functions that rebuild an array and a number. They are taken from two objects,
# because their module is private and was moved in NumPy 2.
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
            raise pickle.UnpicklingError(f"it names the object {module}.{name}")
        return ALLOWED[module, name]


def unpickle(content: bytes, encoding: str = "ASCII") -> Any:
    """Return the content of a pickle.

    Args:
        content: bytes of the pickle.
        encoding: encoding of strings of Python 2.

    Raises:
        UnpicklingError: The pickle names an object that is not in ALLOWED. A damaged
            pickle may raise any other exception.
    """
    return _Unpickler(io.BytesIO(content), encoding=encoding).load()
