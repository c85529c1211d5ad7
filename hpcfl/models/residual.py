"""Residual networks of basic blocks (He et al., CVPR 2016)."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from hpcfl.errors import UserError
from hpcfl.models import Classifier

Norm = Literal["batch", "group", "none"]
GROUPS = 2  # groups of channels in a group norm


class BasicBlock(nn.Module):
    """relu(f(x) + shortcut(x)), where f is two 3×3 convolutions.

    The shortcut is the identity, or a 1×1 convolution where the shapes differ.
    ``stride`` is that of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = _make_norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _make_norm(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                # FedNH's network without norm layers has group norm here.
                _make_norm("group" if norm == "none" else norm, outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(inner + self.shortcut(x))


class ResidualNetwork(Classifier):
    """A stem, stages of blocks, the mean over positions and the head.

    Each stage but the first halves the image. The children ``stem``, ``stage1`` … and
    ``head`` are the layers that "the upper p layers" counts. Convolutions are
    initialised Kaiming normal (fan-out).

    Args:
        widths: The channels of each stage.
        blocks: The number of blocks of a stage.
        large_stem: Whether the stem is a 7×7 convolution and a 3×3 pooling, both with
            stride 2; otherwise it is a 3×3 convolution with stride 1.

    Raises:
        UserError: The samples are not images.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        widths: Sequence[int],
        blocks: int,
        norm: Norm,
        large_stem: bool,
        head_bias: bool,
    ):
        super().__init__()
        if len(shape) != 3:
            raise UserError(
                f"model.name = '{type(self).__name__.lower()}' needs images [channels, height, "
                f"width]; a sample here has the shape {'×'.join(map(str, shape))}"
            )
        self.stem = _make_stem(shape[0], widths[0], norm, large_stem)
        self._stages = [f"stage{position}" for position in range(1, len(widths) + 1)]
        for name, inputs, outputs in zip(
            self._stages, [widths[0], *widths], widths, strict=False
        ):
            stride = 1 if name == "stage1" else 2
            layers = [BasicBlock(inputs, outputs, stride, norm)]
            for _ in range(blocks - 1):
                layers.append(BasicBlock(outputs, outputs, 1, norm))
            self.add_module(name, nn.Sequential(*layers))
        self.head = nn.Linear(widths[-1], classes, bias=head_bias)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )

    def features(self, x: Tensor) -> Tensor:
        """Return the head's input [batch, channels]: the mean over all positions."""
        x = self.stem(x)
        for name in self._stages:
            x = self.get_submodule(name)(x)
        return x.mean(dim=(2, 3))


def _make_norm(norm: Norm, channels: int) -> nn.Module:
    """Return a norm layer of the kind ``norm``; the identity for "none"."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(GROUPS, channels)
    return nn.Identity()


def _make_stem(inputs: int, width: int, norm: Norm, large: bool) -> nn.Sequential:
    kernel, stride = (7, 2) if large else (3, 1)
    stem = nn.Sequential(
        nn.Conv2d(inputs, width, kernel, stride, padding=kernel // 2, bias=False),
        _make_norm(norm, width),
        nn.ReLU(),
    )
    if large:
        stem.append(nn.MaxPool2d(3, 2, padding=1))
    return stem
