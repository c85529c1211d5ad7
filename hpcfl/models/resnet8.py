"""ResNet-8, DiversiFed's model for CIFAR-100 (protocols.md B5): 1,258,404 parameters."""

from hpcfl.models._residual import ResidualNetwork


class ResNet8(ResidualNetwork):
    """One basic block of 64, 128 and 256 channels each, batch norm, the stem of ResNet-18."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__(shape, classes, (64, 128, 256), blocks=1, norm="batch", large_stem=True,
                         head_bias=True)


plugin = ResNet8
