"""Several transforms in sequence."""

import numpy as np
import torch
from own_updates import Halve, Identity

from hpcfl.updates.base import Context, Transform
from hpcfl.updates.chain import Chain

CONTEXT = Context(1, 1, np.arange(2), 2)
COLUMNS = torch.arange(3)
CHAIN = Chain([Halve(kind="halve"), Halve(kind="halve")])


def test_each_transform_has_separate_memory():
    names = ["update.0.rest", "update.1.rest"]
    assert CHAIN.list_memory() == names
    state = {name: torch.zeros(2, 3) for name in names}
    made = torch.full((2, 3), 4.0)
    bits = torch.full((2,), 96.0).double()
    sent, bits = CHAIN.apply(state, made, bits, CONTEXT, COLUMNS)
    assert sent.tolist() == [[1.0] * 3] * 2 and bits.tolist() == [15, 15]
    assert [state[name][0, 0].item() for name in names] == [2, 1]


def test_the_server_finishes_the_last_transform_first():
    names = CHAIN.list_server_memory()
    server = {
        name: torch.tensor([float(place)] * 3) for place, name in enumerate(names)
    }
    result = CHAIN.finish(server, torch.ones(3), CONTEXT, COLUMNS)
    assert result.tolist() == [1] * 3
    assert [server[name][0].item() for name in names] == [1, 2]


def test_bits_are_those_of_the_last_transform():
    assert CHAIN.count_bits(3).tolist() == [15]
    assert Chain([]).count_bits(3).tolist() == [96]
    assert CHAIN.has_effect(3) and not Chain([Identity(kind="same")]).has_effect(3)


class Rounded(Transform):
    """Transform that sends float16 numbers."""

    def apply(self, updates, context):
        return updates.half()

    def count_bits(self, updates, bits):
        return torch.full_like(bits, 8.0 * updates[0].nbytes)


def test_updates_of_another_type_stay_float32_so_that_their_mean_is_not_rounded():
    chain, made = Chain([Rounded(kind="rounded")]), torch.tensor([[0.1, 3.0]])
    sent, bits = chain.apply({}, made, torch.zeros(1), CONTEXT, COLUMNS)
    assert sent.dtype == torch.float32 and bits.item() == 32
    assert torch.equal(sent, made.half().float())
    assert torch.equal(chain.apply_to_forged(made, CONTEXT), sent)
