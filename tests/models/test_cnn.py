import pytest
import torch
from torch.nn.functional import max_pool2d, relu

from hpcfl.errors import UserError
from hpcfl.models.cnn import plugin


@pytest.mark.parametrize(
    ("shape", "classes", "layers", "total"),
    [
        ((1, 28, 28), 10, [832, 51_264, 524_800, 5_130], 582_026),
        ((3, 32, 32), 10, [2_432, 51_264, 819_712, 5_130], 878_538),
        ((3, 32, 32), 100, [2_432, 51_264, 819_712, 51_300], 924_708),
        ((3, 64, 64), 200, [2_432, 51_264, 5_538_304, 102_600], 5_694_600),
    ],
)
def test_parameters_are_those_of_the_papers(shape, classes, layers, total):
    model = plugin(shape, classes)
    assert [name for name, _ in model.named_children()] == [
        "conv1",
        "conv2",
        "fc1",
        "head",
    ]
    assert [
        sum(p.numel() for p in layer.parameters()) for layer in model.children()
    ] == layers
    assert sum(p.numel() for p in model.parameters()) == total


def test_pooling_before_the_relu_changes_neither_values_nor_gradients():
    torch.manual_seed(0)
    model, x = plugin((3, 32, 32), 10), torch.randn(4, 3, 32, 32)
    printed = relu(
        model.fc1(
            max_pool2d(
                relu(model.conv2(max_pool2d(relu(model.conv1(x)), 2))), 2
            ).flatten(1)
        )
    )
    assert torch.equal(model.features(x), printed)
    assert torch.equal(model(x), model.head(printed))
    ours = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    theirs = torch.autograd.grad(
        model.head(printed).square().sum(), list(model.parameters())
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("shape", "told"), [((1, 8, 8), "1×8×8"), ((3, 32, 15), "3×32×15"), ((200,), "200")]
)
def test_other_samples_are_refused_with_their_shape(shape, told):
    with pytest.raises(
        UserError, match=f"at least 16×16; a sample here has the shape {told};"
    ):
        plugin(shape, 10)
