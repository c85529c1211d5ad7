"""Positions of parameters in a row."""

import pytest
import torch
from refusals import expect_refusal
from torch import nn

from hpcfl.models.mlp import MLP
from hpcfl.rows.layout import (
    Layout,
    lay_out_buffers,
    lay_out_parameters,
    make_row,
    match_names,
)


@pytest.fixture
def layout():
    return lay_out_parameters(
        MLP((3,), 2, hidden=(4, 5))
    )  # 3·4 + 4, 4·5 + 5, 5·2 + 2 parameters


def test_groups_are_prefixes_and_suffixes(layout):
    assert layout.width == 16 + 25 + 12
    assert layout.columns("all") == slice(0, 53)
    assert layout.columns("body") == slice(0, 41)
    assert (
        layout.columns("head")
        == layout.columns("output")
        == layout.columns(1)
        == slice(41, 53)
    )
    assert layout.columns(2) == slice(16, 53)
    assert layout.columns(3) == layout.columns("all")
    assert layout.columns("hidden2") == slice(16, 41)
    assert layout.columns("hidden2.bias") == slice(36, 41)


def test_members_of_a_union_are_in_row_order(layout):
    assert layout.list_members(["head", "hidden1.bias"]) == [
        "hidden1.bias",
        "head.weight",
        "head.bias",
    ]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("haed", "'haed' .*'head'"),
        (0, "method.layers = 0: .* 1 to 3"),
        (4, "method.layers = 4: .* 1 to 3"),
    ],
)
def test_unknown_groups_are_refused_with_the_valid_ones(layout, group, message):
    with expect_refusal(message):
        layout.columns(group)


def test_without_a_head_the_last_child_is_it():
    layout = lay_out_parameters(
        nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    )
    assert layout.columns("head") == slice(9, 25)


def test_groups_of_scattered_parameters_are_refused():
    one = torch.zeros(1)
    with expect_refusal("'a'"):
        Layout([("a.x", one), ("b.x", one), ("a.y", one)])


def test_rows_and_tensors_are_each_others_inverse(layout):
    rows = torch.randn(7, layout.width)
    tensors = {name: view.clone() for name, view in layout.split(rows).items()}
    assert [tuple(tensor.shape[1:]) for tensor in tensors.values()] == layout.shapes
    again, order = torch.zeros_like(rows), torch.randperm(7)
    layout.write(
        {name: tensor[order] for name, tensor in tensors.items()}, again, order
    )
    assert torch.equal(again, rows)
    layout.split(rows)["head.bias"].zero_()
    assert (rows[:, -2:] == 0).all()  # split makes no copy


def test_writing_leaves_other_rows_and_columns_of_absent_names(layout):
    rows = torch.randn(3, layout.width)
    before = rows.clone()
    layout.write({"head.bias": torch.zeros(2, 2)}, rows, torch.tensor([2, 0]))
    assert torch.equal(rows[:, :-2], before[:, :-2]) and (rows[[0, 2], -2:] == 0).all()
    assert torch.equal(rows[1], before[1])


def test_a_modules_row_is_its_parameters_one_after_the_other():
    module = MLP((3,), 2, hidden=(4,))
    assert torch.equal(
        make_row(lay_out_parameters(module), module),
        nn.utils.parameters_to_vector(module.parameters()).detach(),
    )


def test_buffers_have_a_separate_layout():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    buffers = lay_out_buffers(module)
    assert buffers.width == 3 + 3 + 1
    assert make_row(buffers, module).tolist() == [*[0] * 3, *[1] * 3, 0]
    assert lay_out_buffers(MLP((3,), 2)).width == 0
    assert make_row(lay_out_buffers(nn.Linear(1, 1)), nn.Linear(1, 1)).shape == (0,)


NAMES = ["block1.qkv.A", "block1.qkv.B", "block2.qkv.A", "block2.qkv.B", "head.weight"]


@pytest.mark.parametrize(
    ("patterns", "places"),
    [
        ([], []),
        (["*.B", "block1"], [0, 1, 3]),
        (["block*.qkv"], [0, 1, 2, 3]),
        (["*"], [0, 1, 2, 3, 4]),
    ],
)
def test_names_of_patterns_come_in_their_own_order(patterns, places):
    assert match_names(patterns, NAMES, "key") == [NAMES[place] for place in places]


def test_a_pattern_of_nothing_is_refused_with_the_nearest_name():
    with expect_refusal(r"key: 'haed\.weight'.* mean 'head\.weight'"):
        match_names(["*.A", "haed.weight"], NAMES, "key")
    with expect_refusal(r"key: 'A' .*head.weight"):
        match_names(["A"], NAMES, "key")
