"""The model of an experiment."""

import pytest
import tiny
import torch
from torch import nn

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.models.mlp import MLP
from hpcfl.simulation.prepare import prepare
from hpcfl.simulation.prepared_model import ModelAdapter

EXPERIMENT = tiny.table("fedavg", adapter={"kind": "head"})


def freeze_body(module):
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith("head"))
    return module


def test_an_adapter_is_handed_in_with_the_values_that_it_reads():
    bias = torch.tensor([1.0, 2, 3, 4])
    read = {"head.bias": bias}
    adapter = ModelAdapter(freeze_body, lambda module: (read, ["read by hand"]))
    prepared = prepare(config.parse(EXPERIMENT), OneProcess(), adapter)
    layout = prepared.setup.layout
    assert layout.width == 4 * 6 + 4  # the head of an MLP 5-6-4
    assert torch.equal(layout.split(prepared.setup.initial())["head.bias"], bias)
    assert "read by hand" in prepared.notes


def test_a_missing_adapter_is_an_error():
    with pytest.raises(ValueError, match="adapter"):
        prepare(config.parse(EXPERIMENT), OneProcess())


def tied(shape, classes):
    """Return a model whose output layer has the weight of the first layer."""
    module = MLP(shape, classes, hidden=(classes, shape[0]))
    module.head = nn.Linear(shape[0], classes, bias=False)
    module.head.weight = module.hidden1.weight
    return module


def test_a_tied_output_layer_is_noted_with_the_layer_that_methods_take():
    model = {"name": f"{__name__}:tied"}
    (note,) = prepare(tiny.parse("fedper", model=model), OneProcess()).notes
    for name in ("head.weight", "hidden1.weight", "hidden2"):
        assert f"'{name}'" in note
