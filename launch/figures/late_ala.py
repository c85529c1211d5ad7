"""FedALA that is FedAvg until a given round."""

from pydantic import PositiveInt

from hpcfl.methods.fedala import FedALA
from hpcfl.methods.options.ala import Activation


class Late(FedALA):
    """From round ``begins`` on clients blend the received model with their own; before,
    they train it.
    """

    begins: PositiveInt = 2
    activation: Activation = "own"  # so that the weights converge when it begins

    def start(self, fleet, inbox):
        return (
            super().start(fleet, inbox)
            if fleet.round >= self.begins
            else self.received(fleet, inbox)
        )
