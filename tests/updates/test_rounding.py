"""Random rounding and sums modulo 2^bits."""

import pytest
import torch

from hpcfl.updates.rounding import centre, count_bits, round_randomly


def test_a_value_is_rounded_up_where_the_draw_is_below_its_fraction():
    values = torch.tensor([2.4, 2.4, -2.4, -2.4, 3.0, -3.0]).double()
    uniforms = torch.tensor([0.39, 0.41, 0.59, 0.61, 0.0, 0.0]).double()
    # −2.4 is −3 + 0.6
    assert round_randomly(values, uniforms).tolist() == [3, 2, -2, -3, 3, -3]


def test_sums_are_centred_modulo_a_power_of_two():
    sums = torch.tensor([7, 8, -8, -9, 15, 16, 5 + 4])
    assert centre(sums, 4).tolist() == [7, -8, -8, 7, -1, 0, -7]
    assert centre(sums[-1:], 5).tolist() == [9]


@pytest.mark.parametrize(("largest", "bits"), [(100_000, 18), (7, 4), (8, 5), (0, 1)])
def test_the_fewest_bits_hold_the_largest_sum_and_one_less_does_not(largest, bits):
    assert count_bits(largest) == bits
    assert largest <= 2 ** (bits - 1) - 1
    assert bits == 1 or largest > 2 ** (bits - 2) - 1
