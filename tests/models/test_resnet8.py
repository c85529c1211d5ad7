"""ResNet-8."""

from refusals import expect_refusal

from hpcfl.models.resnet8 import plugin
from hpcfl.rows.layout import lay_out_parameters


def test_layers_have_the_parameters_of_diversifeds_paper():
    layout = lay_out_parameters(plugin((3, 32, 32), 100))
    assert layout.width == 1_258_404
    layers = (layout.columns(count) for count in range(1, 6))
    assert [layout.width - layer.start for layer in layers] == [
        25_700,
        25_700 + 919_040,
        25_700 + 919_040 + 230_144,
        25_700 + 919_040 + 230_144 + 73_984,
        1_258_404,
    ]


def test_only_images_fit():
    with expect_refusal(r"'resnet8' .* 200$"):
        plugin((200,), 4)
