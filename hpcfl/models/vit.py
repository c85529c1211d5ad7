"""A vision transformer (Dosovitskiy et al., ICLR 2021); by default FedTP's for CIFAR-10
(Li et al., CVPR 2023): 1,988,490 parameters.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from hpcfl.errors import UserError
from hpcfl.models.transformer import (
    Depth,
    Dropout,
    Heads,
    HeadWidth,
    Hidden,
    NormEps,
    Positions,
    Transformer,
    Width,
)


class Patches(nn.Module):
    """Tokens of an image: its square patches, each transformed by one linear layer.

    The layer is equivalent to a convolution with a stride equal to its kernel size, but
    trains several clients side by side on a CPU.
    """

    def __init__(self, channels: int, side: int, width: int):
        super().__init__()
        self.side = side
        self.linear = nn.Linear(channels * side**2, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens [batch, patches, width] of images [batch, channels, height,
        width].
        """
        rows = x.unflatten(3, (-1, self.side)).unflatten(2, (-1, self.side))
        patches = rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        result: Tensor = self.linear(patches)
        return result


class ViT(Transformer):
    """Pre-norm blocks over the patches of an image and a class token, and a head on the
    class token.

    As in FedTP's code the attention weights have no dropout, and queries, keys and
    values have no bias. Published files need ``bias = true``, ``norm_eps = 1e-12`` and
    ``adapter.names = "vit"``. Tokens and positions are initialised from a truncated
    normal distribution with standard deviation 0.02; FedTP's standard deviation is 1.

    Raises:
        UserError: The samples are not images, or their sides are not multiples of the
            side of a patch.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        patch: Annotated[
            int, Field(ge=1, le=1 << 10, description="side of a patch in pixels")
        ] = 4,
        width: Width = 128,
        depth: Depth = 6,
        heads: Heads = 8,
        head_width: HeadWidth = 64,
        hidden: Hidden = 256,
        dropout: Dropout = 0.1,
        bias: Annotated[
            bool, Field(description="add biases to queries, keys and values")
        ] = False,
        norm_eps: NormEps = 1e-5,
    ):
        if len(shape) != 3 or shape[1] % patch or shape[2] % patch:
            raise UserError(
                "model.name = 'vit' needs images [channels, height, width] that are "
                f"made of whole patches, {patch}×{patch}; a sample here has the shape "
                f"{'×'.join(map(str, shape))}"
            )
        patches = (shape[1] // patch) * (shape[2] // patch)
        super().__init__(
            "vit",
            patches,
            width=width,
            depth=depth,
            heads=heads,
            hidden=hidden,
            head_width=head_width,
        )
        self.patches = Patches(shape[0], patch, width)
        self.positions = Positions(patches, width, class_token=True, dropout=dropout)

        self.add_blocks(dropout, bias=bias, norm_eps=norm_eps)
        self.norm = nn.LayerNorm(width, norm_eps)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the head's input [batch, width]."""
        x = self.positions(self.patches(x))
        x = self.through_blocks(x)
        result: Tensor = self.norm(x[:, 0])
        return result


plugin = ViT
