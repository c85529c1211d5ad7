"""Federations above one frozen base."""

import numpy as np
import pytest
import tiny
import torch
from in_threads import on_ranks
from playing import play_on, prepare_tiny
from refusals import expect_refusal
from torch import nn

from hpcfl.communication.communicator import OneProcess
from hpcfl.rows import constants

LORA = {"kind": "lora", "targets": ["hidden*"], "rank": 2}
P = 2 * 5 + 2 * 6 + 4 * 6 + 4  # A [2, 5], B [6, 2] and the head of an MLP 5-6-4


def base_of(prepared):
    return constants.collect(prepared.resources.kernel.module)


def prepared_with(adapter, method="fedavg", **sections):
    return prepare_tiny(method, adapter=adapter, **sections)


def test_the_base_is_the_model_that_is_drawn_without_an_adapter():
    plain, adapted = prepared_with({}), prepared_with(LORA)
    drawn = plain.setup.layout.split(plain.setup.initial())
    for name, value in base_of(adapted).items():
        assert torch.equal(value, drawn[name])
    assert adapted.setup.layout.width == P and adapted.setup.layout.frozen == 36
    # the same base under another adapter, and another one
    assert adapted.fixed_digest == prepared_with({"kind": "head"}).fixed_digest
    assert adapted.fixed_digest != prepared_with({"kind": "bias"}).fixed_digest
    layout, initial = adapted.setup.layout, adapted.setup.initial()
    assert torch.equal(adapted.setup.initial(), initial)
    drawn_anew = layout.split(adapted.setup.initial(1))["hidden1.A"]
    assert not torch.equal(drawn_anew, layout.split(initial)["hidden1.A"])


@pytest.mark.parametrize("method", ["fedala", "fedrep"])
def test_no_method_changes_or_sends_the_base(federate, short_ala, method):
    played = federate(method, adapter=LORA, rounds=2)
    expected = base_of(prepared_with(LORA, method))
    for name, value in base_of(played.prepared).items():
        assert torch.equal(value, expected[name])
    for value in [*played.server.values(), *played.clients.values()]:
        assert 30 not in value.shape  # the values of the frozen weight
    if method == "fedala":
        assert np.nanmax(played.values["floats_down"]) == P
        assert np.nanmax(played.values["clients/floats_up"]) == P


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "precision"),
    [
        ({**LORA, "dropout": 0.2}, "exact"),
        ({"kind": "bias"}, "exact"),
        (LORA, "bf16"),
        ({"kind": "none"}, "bf16"),
    ],
)
def test_the_same_bits_on_any_ranks_in_any_lanes_and_after_a_resume(
    tmp_path, adapter, precision
):
    def play(folder, rounds, ranks=None, **keys):
        runtime = {"precision": precision, **keys}
        table = tiny.table("fedavg", adapter=adapter, rounds=rounds, runtime=runtime)
        return play_on(ranks or OneProcess(), tmp_path / folder, table).digest

    whole = play("whole", 3)
    assert play("two lanes", 3, lanes=2) == whole
    play("resumed", 1)
    assert play("resumed", 3) == whole
    assert on_ranks(3, lambda ranks: play("three", 3, ranks)) == whole


def test_keys_of_another_kind_are_refused():
    with expect_refusal(r"adapter: rank: .*kind = 'bias'"):
        prepared_with({"kind": "bias", "rank": 4})


@pytest.mark.parametrize("precision", ["exact", "bf16"])
def test_a_loaded_model_has_plain_torch_layers_in_float32(played, precision):
    adapter, runtime = {**LORA, "alpha": 8.0}, {"precision": precision}
    run = played("fedavg", adapter=adapter, rounds=2, runtime=runtime)
    module = run.model("global")
    assert type(module.hidden1) is type(module.head) is nn.Linear
    names = ["hidden1.weight", "hidden1.bias", "head.weight", "head.bias"]
    assert list(module.state_dict()) == names
    base = base_of(prepared_with(adapter, runtime=runtime))
    assert torch.equal(module.hidden1.bias, base["hidden1.bias"])
    assert not torch.equal(module.hidden1.weight, base["hidden1.weight"])
    for value in module.state_dict().values():
        assert value.dtype == torch.float32


class Reads(nn.Module):
    """A model that reads the weight of its hidden layer instead of calling it."""

    def __init__(self, shape, classes):
        super().__init__()
        self.hidden = nn.Linear(shape[0], 6)
        self.head = nn.Linear(6, classes)

    def forward(self, x):
        hidden = torch.nn.functional.linear(x, self.hidden.weight)
        return self.head(hidden)


def test_an_adapter_without_matching_layers_is_refused():
    model = {"name": f"{__name__}:Reads"}
    prepared_with({"kind": "head"}, model=model)
    with expect_refusal(r"adapter\.kind = 'lora': .*'hidden\."):
        prepared_with(LORA, model=model)
