"""What all built-in models promise, and the counts that the papers print or that follow
from their architectures.
"""

import pytest
import torch
from torch import nn

from hpcfl import models
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.models.heads import CosineHead, simplex, spread
from hpcfl.rows.layout import of_parameters

VOCABULARY = 98_635
COUNTS = [  # model table, shape, classes, parameters of each layer
    ({"name": "mlp"}, (1, 28, 28), 10, [50_240, 650]),
    ({"name": "cnn"}, (1, 28, 28), 10, [832, 51_264, 524_800, 5_130]),
    ({"name": "lenet"}, (3, 32, 32), 10, [456, 2_416, 48_120, 10_164, 850]),
    ({"name": "lenet"}, (3, 28, 28), 9, [456, 2_416, 48_120, 10_164, 765]),
    ({"name": "resnet8"}, (3, 32, 32), 100, [9_536, 73_984, 230_144, 919_040, 25_700]),
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
    ({"name": "conv2cifar"}, (3, 32, 32), 10, [4_864, 102_464, 614_784, 73_920, 1_920]),
    (
        {"name": "conv2cifar"},
        (3, 32, 32),
        100,
        [4_864, 102_464, 614_784, 73_920, 19_200],
    ),
    (
        {"name": "fasttext", "vocabulary": VOCABULARY},
        (200,),
        4,
        [3_156_320, 1_056, 132],
    ),
    ({"name": "spiral"}, (2,), 6, [48, 136, 36, 10, 12]),
    # a block: norms 2·256, qkv 128·1536, out 512·128 + 128, MLP 129·256 + 257·128
    (
        {"name": "vit"},
        (3, 32, 32),
        10,
        [48 * 128 + 128, 128 + 65 * 128, *[328_704] * 6, 256, 1_290],
    ),
]
TOTALS = [
    50_890,
    582_026,
    62_006,
    61_921,
    1_258_404,
    11_279_112,
    11_271_232,
    11_263_424,
    797_952,
    815_232,
    3_157_508,
    242,
    1_988_490,
]
NAMES = [
    " ".join(map(str, [*table.values(), classes])) for table, _, classes, _ in COUNTS
]


def made(table, shape, classes, vocabulary=None):
    model = config.parse({"model": table, "method": {"name": "fedavg"}}).model
    torch.manual_seed(0)
    return models.build(model, shape, classes, vocabulary)


@pytest.mark.parametrize(
    ("case", "total"), list(zip(COUNTS, TOTALS, strict=True)), ids=NAMES
)
def test_parameters_are_those_of_the_papers(case, total):
    table, shape, classes, layers = case
    model = made(table, shape, classes)
    assert [
        sum(p.numel() for p in layer.parameters()) for layer in model.children()
    ] == layers and sum(layers) == total
    layout = of_parameters(model)  # the upper p layers of protocols.md B4
    assert [
        layout.width - layout.columns(p).start for p in range(1, len(layers) + 1)
    ] == [sum(layers[-p:]) for p in range(1, len(layers) + 1)]
    assert layout.columns("head") == layout.columns(1)


def test_a_vocabulary_left_out_is_that_of_the_data():
    assert made({"name": "fasttext"}, (200,), 4, 17).embedding.num_embeddings == 17


@pytest.mark.parametrize(
    ("table", "shape", "told"),
    [
        ({"name": "fasttext"}, (3, 32, 32), "needs token ids .* has the shape 3×32×32"),
        ({"name": "fasttext"}, (2,), "2 and no vocabulary"),
    ],
)
def test_other_samples_are_refused(table, shape, told):
    with pytest.raises(UserError, match=told):
        made(table, shape, 4)


def test_any_model_can_have_a_cosine_head():
    model = made(
        {
            "name": "lenet",
            "head": "cosine",
            "head_scale": 20.0,
        },
        (3, 32, 32),
        10,
    )
    assert (
        sum(p.numel() for p in model.parameters()) == 62_006 - 10 + 1
    )  # no bias, a scale
    x = torch.randn(5, 3, 32, 32)
    cosines = nn.functional.cosine_similarity(
        model.features(x)[:, None], model.head.weight[None], dim=2
    )
    torch.testing.assert_close(model(x), 20 * cosines)
    model.head.weight.data *= 3
    torch.testing.assert_close(model(x), 20 * cosines)


def test_a_cosine_head_needs_a_head_to_replace():
    with pytest.raises(
        UserError,
        match=r"output layer is the nn\.Linear 'head'; 'test_models:headless'",
    ):
        models.build(config.Model(name="test_models:headless", head="cosine"), (3,), 2)


def headless(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], classes))


def test_rows_of_a_cosine_head_are_far_apart():
    torch.manual_seed(0)
    rows = CosineHead(8, 5, 1.0).weight
    torch.testing.assert_close(rows @ rows.T, torch.eye(5))
    half, height = 0.5, 3**0.5 / 2  # in the plane row k is at 60k degrees
    torch.testing.assert_close(
        spread(6, 2),
        torch.tensor(
            [
                [1, 0],
                [half, height],
                [-half, height],
                [-1, 0],
                [-half, -height],
                [half, -height],
            ]
        ),
    )
    farthest = spread(10, 9)  # one more than fit orthogonally: all cosines are −1/9
    torch.testing.assert_close(
        farthest @ farthest.T, torch.eye(10) * 10 / 9 - 1 / 9, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(("classes", "width"), [(3, 2), (10, 192), (10, 9), (2, 5)])
def test_simplex_rows_solve_fednhs_first_equation(classes, width):
    """Squared distances are 2K/(K − 1): 3 for K = 3, 2.22 for K = 10, 4 for K = 2."""
    rows = simplex(classes, width)
    assert rows.shape == (classes, width)
    squares = torch.cdist(rows, rows).square()
    apart = squares[~torch.eye(classes, dtype=torch.bool)]
    expected = {3: 3.0, 10: 20 / 9, 2: 4.0}[classes]
    torch.testing.assert_close(apart, torch.full_like(apart, expected))
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(classes))
