"""Texts between ranks, which do not know each other's lengths.

A text travels as a head, whose size is fixed: its length, and as much of it as there is room for. What does
not fit is the rest, which mostly is empty.
"""

import numpy as np

HEAD_BYTES, LENGTH_BYTES = 4096, 8
ROOM = HEAD_BYTES - LENGTH_BYTES


def split(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A text's head, uint8 [HEAD_BYTES], and its rest, uint8 [r]; both can be written to, as MPI asks for."""
    head = len(text).to_bytes(LENGTH_BYTES, "little") + text[:ROOM].ljust(ROOM)
    return np.frombuffer(bytearray(head), np.uint8), np.frombuffer(
        bytearray(text[ROOM:]), np.uint8
    )


def joined(head: np.ndarray, rest: np.ndarray) -> bytes:
    """The text of which ``split`` made these."""
    return head[LENGTH_BYTES:].tobytes()[: _length(head)] + rest.tobytes()


def missing(head: np.ndarray) -> int:
    """How many bytes the rest has of the text with this head."""
    return max(0, _length(head) - ROOM)


def _length(head: np.ndarray) -> int:
    return int.from_bytes(head[:LENGTH_BYTES].tobytes(), "little")
