"""A method that records the files that lead to its loss."""

import sys
from types import FrameType
from typing import ClassVar

from torch import Tensor, nn

from hpcfl.clients.losses import Batch
from hpcfl.methods.fedavg import FedAvg


class Watched(FedAvg):
    """FedAvg that records the files of the frames above each call of its loss.

    stacks: file of each frame of each call, innermost first.
    """

    stacks: ClassVar[list[list[str]]] = []

    def loss(self, model: nn.Module, batch: Batch, lane) -> Tensor:
        """Return FedAvg's loss and record the files of the frames above this call."""
        frame: FrameType | None = sys._getframe(1)
        files = []
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        Watched.stacks.append(files)
        return super().loss(model, batch, lane)
