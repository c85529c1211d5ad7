"""Frozen parameters of a model are in no row, and all models share one set of them."""

import copy

import pytest
import tiny
import torch
from torch import nn

from hpcfl.clients.losses import evaluate_at
from hpcfl.models.mlp import MLP
from hpcfl.rows import constants
from hpcfl.rows.layout import lay_out_parameters, make_row


def partly(*frozen):
    """Return an MLP of 3·4 + 4, 4·5 + 5 and 5·2 + 2 parameters, with constants."""
    model = tiny._without(MLP((3,), 2, hidden=(4, 5)), *frozen)
    return constants.hold(model, constants.copy_frozen(model))


@pytest.mark.parametrize(
    ("frozen", "columns", "widths"),
    [
        (
            ["hidden1"],
            {
                "body": (0, 25),
                "head": (25, 37),
                1: (25, 37),
            },
            [25, 12],
        ),
        (["hidden1", "hidden2"], {"body": (0, 0), "head": (0, 12)}, [12]),
        (
            ["head"],
            {
                "body": (0, 41),
                "head": (41, 41),
                1: (16, 41),
            },
            [16, 25],
        ),
        (["hidden2"], {"hidden2": (16, 16), "neck": (0, 16)}, [16, 12]),
        (
            ["hidden1.weight", "head.weight"],
            {
                "hidden1": (0, 4),
                "head": (29, 31),
                "head.weight": (29, 29),
            },
            [4, 25, 2],
        ),
    ],
)
def test_a_group_has_the_columns_of_its_trained_parameters(frozen, columns, widths):
    layout = lay_out_parameters(partly(*frozen))
    for group, span in columns.items():
        assert layout.columns(group) == slice(*span)
    assert [layer.stop - layer.start for layer in layout.layers] == widths
    assert layout.width + layout.frozen == 16 + 25 + 12
    assert layout.list_members(["all"]) == layout.names


def test_the_parameters_of_a_model_are_those_of_its_row():
    model = copy.deepcopy(partly("hidden1"))
    layout, constant = lay_out_parameters(model), constants.collect(model)
    assert [name for name, _ in model.named_parameters()] == layout.names
    assert list(constant) == ["hidden1.weight", "hidden1.bias"]
    assert make_row(layout, model).shape == (37,)
    assert len(model.state_dict()) == 6
    whole = constants.release(model)
    names = [name for name, _ in MLP((3,), 2, hidden=(4, 5)).named_parameters()]
    assert [name for name, _ in whole.named_parameters()] == names


def test_another_models_row_has_the_constants_of_this_one():
    model, x = partly("hidden1"), torch.randn(7, 3)
    row = make_row(lay_out_parameters(model), model)
    assert torch.equal(evaluate_at(model, row, lambda other: other(x)), model(x))
    assert not torch.equal(
        evaluate_at(model, 2 * row, lambda other: other(x)), model(x)
    )


def test_all_models_have_the_values_that_are_held():
    values = constants.copy_frozen(tiny._without(MLP((3,), 2, hidden=(4, 5)), "head"))
    other = constants.hold(tiny._without(MLP((3,), 2, hidden=(4, 5)), "head"), values)
    for name, value in constants.collect(other).items():
        assert torch.equal(value, values[name])


def test_tied_parameters_are_one_constant():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    held = constants.hold(model, constants.copy_frozen(model))
    assert list(constants.collect(held)) == ["0.weight"]
    assert held[0].weight is held[1].weight
    assert [name for name, _ in held.named_parameters(remove_duplicate=False)] == [
        "0.bias",
        "1.bias",
        "2.weight",
        "2.bias",
    ]


def test_a_model_without_frozen_parameters_is_unchanged():
    model = MLP((3,), 2)
    assert type(constants.hold(model, constants.copy_frozen(model))) is MLP
    assert constants.collect(model) == {} and constants.release(model) is model
