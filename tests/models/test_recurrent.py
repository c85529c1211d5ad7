"""LSTM and GRU in lanes, compared with torch's layers with the same parameters."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from hpcfl.models.layer_replacements import batching_clients, replace_layers
from hpcfl.models.random import keyed, list_random_layers

FORMS = {
    "plain": {},
    "two layers": {"num_layers": 2, "batch_first": True},
    "both directions": {
        "num_layers": 2,
        "bidirectional": True,
        "bias": False,
    },
}


def pair(kind, **keys):
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(3, 4, **keys)
    ours = replace_layers(copy.deepcopy(theirs))
    names = [name for name, _ in theirs.named_parameters()]
    assert [name for name, _ in ours.named_parameters()] == names
    return theirs, ours


def flat(results):
    output, states = results
    return [output, *([states] if isinstance(states, torch.Tensor) else states)]


@pytest.mark.parametrize("keys", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_loop_over_time_is_torchs_operator(kind, keys):
    """Also from given states, for one sample, and in the gradients."""
    theirs, ours = pair(kind, **keys)
    x = torch.randn(5, 2, 3)
    first = [torch.randn_like(state) for state in flat(theirs(x))[1:]]
    samples = x.shape[0] if theirs.batch_first else x.shape[1]
    assert all(state.shape[1] == samples for state in first)
    begun = first[0] if kind == "GRU" else tuple(first)
    for given in ([x], [x, begun], [x[:, 0]]):
        with batching_clients():
            got = flat(ours(*given))
        for one, other in zip(got, flat(theirs(*given)), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
    gradients = []
    for layer in (theirs, ours):
        with batching_clients():
            loss = layer(x)[0].square().sum()
        gradients.append(torch.autograd.grad(loss, list(layer.parameters())))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_a_projected_state_is_torchs():
    theirs, ours = pair("LSTM", num_layers=2, proj_size=2)
    x = torch.randn(5, 2, 3)
    with batching_clients():
        got = flat(ours(x))
    for one, other in zip(got, flat(theirs(x)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_dropout_between_layers_is_keyed_alone_and_in_lanes(kind):
    _, ours = pair(kind, num_layers=2, dropout=0.5)
    x = torch.randn(5, 2, 3)
    keys = torch.tensor([[[3, 4]], [[5, 6]]], dtype=torch.int32)
    tensors = {
        name: torch.stack([tensor.detach(), 2 * tensor.detach()])
        for name, tensor in ours.named_parameters()
    }

    def output(own, key):
        with keyed(list_random_layers(ours), key):
            return functional_call(ours, own, (x,))[0]

    with batching_clients():
        both = vmap(output)(tensors, keys)
    with keyed(list_random_layers(ours), keys[0]):
        torch.testing.assert_close(ours(x)[0], both[0], rtol=0, atol=2e-6)
    with batching_clients():
        other = vmap(output)(tensors, keys.flip(0))
    assert (both[0] - other[0]).abs().max() > 1e-3


def test_a_client_alone_runs_through_torchs_operator():
    theirs, ours = pair("LSTM")
    x = torch.randn(5, 2, 3)
    assert torch.equal(theirs(x)[0], ours(x)[0])
