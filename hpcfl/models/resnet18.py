"""ResNet-18 in the forms of the papers, for Tiny-ImageNet with 200 classes
(protocols.md B3, B6).

FedALA and cwFedAvg use torchvision's form with batch norm, with 11,279,112 parameters.
The other methods in FedNH's experiments have group norm, a 3×3 stem without pooling and
a head without bias, 11,271,232 parameters. FedNH itself has the same network with norm
layers only in the shortcuts, 11,263,424.
"""

from typing import Annotated

from pydantic import Field

from hpcfl.models.residual import Norm, ResidualNetwork


class ResNet18(ResidualNetwork):
    """Four stages of two basic blocks each, of 64, 128, 256 and 512 channels."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        norm: Annotated[
            Norm,
            Field(
                description="norm layers; batch: torchvision's form; group or none: FedNH's"
            ),
        ] = "batch",
    ):
        large = norm == "batch"
        super().__init__(
            shape,
            classes,
            (64, 128, 256, 512),
            blocks=2,
            norm=norm,
            large_stem=large,
            head_bias=large,
        )


plugin = ResNet18
