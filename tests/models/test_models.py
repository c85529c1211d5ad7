"""Guarantees of all built-in models, and counts that the papers print or that follow
from their architectures.
"""

import pytest
import torch
from refusals import expect_refusal

from hpcfl import models
from hpcfl.experiment import config
from hpcfl.rows.layout import lay_out_parameters

VOCABULARY = 98_635
COUNTS = [  # model table, shape, classes, parameters of each layer
    ({"name": "mlp"}, (1, 28, 28), 10, [50_240, 650]),
    ({"name": "cnn"}, (1, 28, 28), 10, [832, 51_264, 524_800, 5_130]),
    ({"name": "lenet"}, (3, 32, 32), 10, [456, 2_416, 48_120, 10_164, 850]),
    ({"name": "lenet"}, (3, 28, 28), 9, [456, 2_416, 48_120, 10_164, 765]),
    (
        {"name": "resnet18"},
        (3, 64, 64),
        200,
        [9_536, 147_968, 525_568, 2_099_712, 8_393_728, 102_600],
    ),
    (
        {"name": "resnet18", "norm": "group"},
        (3, 64, 64),
        200,
        [1_856, 147_968, 525_568, 2_099_712, 8_393_728, 102_400],
    ),
    (
        {"name": "resnet18", "norm": "none"},
        (3, 64, 64),
        200,
        [1_728, 147_456, 524_544, 2_097_664, 8_389_632, 102_400],
    ),
    (
        {"name": "fasttext", "vocabulary": VOCABULARY},
        (200,),
        4,
        [3_156_320, 1_056, 132],
    ),
    # per block: norms 2·256, qkv 128·1536, out 512·128 + 128, MLP 129·256 + 257·128
    (
        {"name": "vit"},
        (3, 32, 32),
        10,
        [48 * 128 + 128, 128 + 65 * 128, *[328_704] * 6, 256, 1_290],
    ),
]
NAMES = [
    " ".join(map(str, [*table.values(), classes])) for table, _, classes, _ in COUNTS
]


def made(table, shape, classes, vocabulary=None):
    model = config.parse({"model": table, "method": {"name": "fedavg"}}).model
    torch.manual_seed(0)
    return models.build(model, shape, classes, vocabulary)


@pytest.mark.parametrize(("table", "shape", "classes", "layers"), COUNTS, ids=NAMES)
def test_parameters_are_those_of_the_papers(table, shape, classes, layers):
    model = made(table, shape, classes)
    assert [
        sum(p.numel() for p in layer.parameters()) for layer in model.children()
    ] == layers
    layout = lay_out_parameters(model)  # the upper p layers of protocols.md B4
    assert [
        layout.width - layout.columns(p).start for p in range(1, len(layers) + 1)
    ] == [sum(layers[-p:]) for p in range(1, len(layers) + 1)]
    assert layout.columns("head") == layout.columns(1)


def test_a_vocabulary_left_out_is_that_of_the_data():
    assert made({"name": "fasttext"}, (200,), 4, 17).embedding.num_embeddings == 17
    with expect_refusal("model.vocabulary = 16: .* 17 "):
        made({"name": "fasttext", "vocabulary": 16}, (200,), 4, 17)


@pytest.mark.parametrize(
    ("table", "shape", "expected"),
    [
        ({"name": "fasttext"}, (3, 32, 32), "'fasttext' .* 3×32×32 "),
        ({"name": "fasttext"}, (2,), "'fasttext' .* 2 and no vocabulary"),
    ],
)
def test_other_samples_are_refused(table, shape, expected):
    with expect_refusal(expected):
        made(table, shape, 4)
