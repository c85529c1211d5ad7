"""Constants of corruptions, and conversion of colours to hue, saturation and value."""

import typing

import numpy as np

from hpcfl.data.shifts import corruptions, pixels


def test_every_corruption_has_a_name_an_operation_and_constants_for_every_size():
    names = set(corruptions.CONSTANTS)
    assert names == set(typing.get_args(pixels.Name))
    assert names == set(corruptions.NOISE) | set(corruptions.FIXED)
    for columns in corruptions.CONSTANTS.values():
        assert [len(column) for column in columns] == [5, 5, 5]


def test_the_larger_side_chooses_the_constants():
    columns = corruptions.CONSTANTS["gaussian-noise"]
    for place, side in enumerate((32, 64, 65)):
        found = corruptions.get_constant("gaussian-noise", 2, (3, 8, side))
        assert found == columns[place][1]


def test_conversion_to_hsv_is_inverted():
    x = np.random.default_rng(0).random((2, 3, 4, 5)).astype(np.float32)
    hsv = corruptions.to_hsv(x)
    assert hsv.shape == (2, 4, 5, 3)
    np.testing.assert_allclose(corruptions.from_hsv(hsv), x, atol=1e-6)
    assert corruptions.to_bytes(np.array([0, 0.5, 1])).tolist() == [0, 128, 255]
