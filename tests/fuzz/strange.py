"""Strategies: unexpected values, slightly wrong bytes, and arrays of other types."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

VALUES = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            -1,
            0,
            1,
            3,
            2.5,
            10**30,
            -(10**30),
            float("nan"),
            float("inf"),
            "",
            "x",
            "..",
            "a:b",
            "os:system",
            "\x1b[31mred",
            "[red]",
            "é\0",
            [],
            [0],
            [[1]],
            {},
            {"a": 1},
        ]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
)


def damaged(draw: Callable[[Any], Any], data: bytes) -> bytes:
    """Draw the bytes with a piece replaced by a few others."""
    start = draw(st.integers(0, len(data)))
    end = draw(
        st.one_of(st.integers(start, min(len(data), start + 8)), st.just(len(data)))
    )
    return data[:start] + draw(st.binary(max_size=8)) + data[end:]


def changed(draw: Callable[[Any], Any], value):
    """Draw a JSON value with one entry replaced, added or removed."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 4)) == 0:
        return draw(VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    if draw(st.integers(0, 5)) == 0:
        rest = {one: value[one] for one in keys if one != key}
        return rest if isinstance(value, dict) else list(rest.values())
    inner = changed(draw, value[key])
    return (
        {**value, key: inner}
        if isinstance(value, dict)
        else [*value[:key], inner, *value[key + 1 :]]
    )


def array(draw: Callable[[Any], Any], old: np.ndarray) -> np.ndarray:
    """Draw an array in place of ``old`` with other values, type, or shape."""
    return draw(st.sampled_from(CHANGES))(
        old, draw(st.sampled_from([-1, 1, 10**9, 2**63 - 1, 1e308, np.inf]))
    )


def _one_value(old: np.ndarray, value: float) -> np.ndarray:
    new = np.array(old, copy=True)
    if new.size and new.dtype.kind in ("f" if isinstance(value, float) else "iuf"):
        new.flat[new.size // 2] = value
    return new


CHANGES: list[Callable[[np.ndarray, float], np.ndarray]] = [
    _one_value,
    lambda old, _: old.astype(np.float64) / 2 if old.dtype.kind in "biuf" else old,
    lambda old, _: old[None],
    lambda old, _: old.ravel()[:-1],
    lambda old, _: np.zeros(0, old.dtype),
    lambda old, _: old.ravel()[::-1],
    lambda old, _: np.zeros_like(old),
    lambda old, value: np.array(value),
    lambda old, _: np.array([b"text"]),
]
