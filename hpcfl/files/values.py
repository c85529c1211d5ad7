"""Detection of not-a-number and infinities in a user's arrays."""

import numpy as np


def describe_nonfinite(array: np.ndarray) -> str:
    """Return the place and value of the first not-a-number or infinity, such as
    ``[3, 0] is nan``; "" where there is none.

    Values beyond float32, in which models compute, count as infinities.
    """
    if not array.size or array.dtype.kind != "f":
        return ""
    largest = np.finfo(np.float32).max
    if -largest <= array.min() and array.max() <= largest:
        return ""
    is_usable = np.abs(array) <= largest
    first = np.unravel_index(np.argmin(is_usable), array.shape)
    place = [int(index) for index in first]
    return f"{place} is {array[first]}"
