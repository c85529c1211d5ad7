"""FedALA with the first rounds of FedAvg."""

from pydantic import PositiveInt

from hpcfl.methods.fedala import FedALA
from hpcfl.methods.options.ala import Activation


class Late(FedALA):
    """FedALA in which clients blend models from round ``begins`` on.

    In earlier rounds they train the received model, as in FedAvg.
    """

    begins: PositiveInt = 2
    activation: Activation = "own"  # lets the weights converge in round ``begins``

    def start(self, fleet, inbox):
        return (
            super().start(fleet, inbox)
            if fleet.round >= self.begins
            else self.received(fleet, inbox)
        )
