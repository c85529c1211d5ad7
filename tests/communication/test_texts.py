"""Texts of all lengths around the size of a head come out whole."""

import numpy as np
import pytest

from hpcfl.communication import texts


@pytest.mark.parametrize(
    "length", [0, 1, texts.ROOM - 1, texts.ROOM, texts.ROOM + 1, 3 * texts.HEAD_BYTES]
)
def test_a_text_comes_out_whole(length: int) -> None:
    text = bytes(np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8))

    head, rest = texts.split(text)

    assert len(head) == texts.HEAD_BYTES
    assert len(rest) == texts.missing(head) == max(0, length - texts.ROOM)
    assert texts.joined(head, rest) == text


def test_spaces_at_the_end_of_a_text_are_part_of_it() -> None:
    assert texts.joined(*texts.split(b"a  ")) == b"a  "


def test_both_parts_can_be_written_to() -> None:
    for part in texts.split(bytes(texts.HEAD_BYTES)):
        part[0] = 1
