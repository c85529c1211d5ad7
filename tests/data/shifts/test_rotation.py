"""Rotated clients: heterogeneity.md H1."""

import numpy as np
import torch
from refusals import expect_refusal

from hpcfl.data.shifts.base import Facts
from hpcfl.data.shifts.rotation import Rotation


def turned(x, angle):
    """Return the samples [n, channels, height, width] after the only concept of an
    angle.
    """
    facts = Facts(0, 1, 4, 0, tuple(x.shape[1:]), x.dtype, 255.0, 10)
    [concept] = Rotation(angles=[angle]).concepts(facts)
    numbers = np.arange(len(x))
    return x if concept.images is None else concept.images(x, numbers)


SQUARE = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)


def test_a_quarter_turn_goes_counter_clockwise():
    quarter = turned(SQUARE, 90.0)
    assert quarter.tolist() == [[[[2, 4], [1, 3]]]] and quarter.is_contiguous()
    assert turned(SQUARE, 180.0).tolist() == [[[[4, 3], [2, 1]]]]
    assert turned(SQUARE, -90.0).tolist() == turned(SQUARE, 270.0).tolist()


def test_other_angles_keep_the_centre_and_bring_zeros_into_the_corners():
    x = torch.full((1, 1, 9, 9), 200, dtype=torch.uint8)
    result = turned(x, 45.0)
    assert result.dtype == torch.uint8 and result[0, 0, 4, 4] == 200
    assert result[0, 0, 0, 0] == 0 == result[0, 0, -1, -1]


def test_images_that_are_not_square_turn_by_half_turns_alone():
    x = torch.arange(6, dtype=torch.uint8).view(1, 1, 2, 3)
    assert turned(x, 180.0).tolist() == [[[[5, 4, 3], [2, 1, 0]]]]
    with expect_refusal(r"shift.0.angles: .*2×3 .* 0 and 180$"):
        turned(x, 90.0)


def test_rotation_of_vectors_is_refused():
    with expect_refusal(r"shift.0.kind: 'rotation' .*\[5\]"):
        turned(torch.zeros(4, 5), 90.0)
