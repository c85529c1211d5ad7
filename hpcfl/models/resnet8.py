"""ResNet-8, DiversiFed's model for CIFAR-100 (protocols.md B5): 1,258,404 parameters."""

from hpcfl.models.residual import ResidualNetwork


class ResNet8(ResidualNetwork):
    """Three stages of one basic block each, of 64, 128 and 256 channels; batch norm and
    ResNet-18's stem.
    """

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__(
            shape,
            classes,
            (64, 128, 256),
            blocks=1,
            norm="batch",
            large_stem=True,
            head_bias=True,
        )


plugin = ResNet8
