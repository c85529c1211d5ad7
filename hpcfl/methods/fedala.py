"""FedALA: FedAvg whose clients blend the global model with their own, element by
element, before they train.

Zhang et al., AAAI 2023, Algorithm 1; ``options/ala.py`` describes the blending.
Deviations from the reference code (methods-1.md §6, item 9): the threshold is the
paper's 0.01. The epochs of a first activation are capped. Ω is learned on a random
subset of the samples, not on a contiguous slice. Only participating clients store ALA's
result; the code overwrites all clients' models.
"""

from pydantic import Field, PositiveInt

from hpcfl.methods.base import Layers, search
from hpcfl.methods.fedavg import FedAvg
from hpcfl.methods.options.ala import (
    Activation,
    Adaptation,
    AdaptiveLocalAggregation,
)


class FedALA(FedAvg):
    """State and traffic of FedALA.

    Server: ``model`` [P]. Client: see ``AdaptiveLocalAggregation``. Down P, up P.
    ``pre`` scores the model after ALA.
    """

    family = "blended by clients"
    reference = "Zhang et al., AAAI 2023"
    short = {"most_epochs": 12, "share": 1.0}
    readers = {
        "ala": {
            True: (
                "eta",
                "share",
                "layers",
                "threshold",
                "most_epochs",
                "activation",
                "adaptation",
            )
        }
    }
    ala: bool = Field(True, description="blend models by ALA; false is FedAvg")
    eta: float = Field(
        1.0,
        ge=0,
        description="learning rate of the blending weights Ω",
        json_schema_extra=search([0.1, 1.0, 10.0], "FedALA"),
    )
    share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="share s of the local samples that learn Ω",
        json_schema_extra=search([0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0], "FedALA"),
    )
    layers: Layers = Field(
        1,
        description="number p of upper layers that are blended; lower ones are copied",
        json_schema_extra=search([1, 2, 3], "FedALA"),
    )
    threshold: float = Field(
        0.01,
        ge=0,
        description="standard deviation of the last ten losses below which a first activation ends",
    )
    most_epochs: PositiveInt = Field(
        100, description="maximal number of epochs of a first activation"
    )
    activation: Activation = Field(
        "round",
        description="first activation in round 2, as in Algorithm 1, or in the second round "
        "of each client",
    )
    adaptation: Adaptation = Field(
        "always",
        description="rounds that learn Ω: all, or only the first activation",
    )

    def adaptive_aggregation(self) -> AdaptiveLocalAggregation:
        """Return ALA with the method's keys."""
        return AdaptiveLocalAggregation(
            eta=self.eta,
            share=self.share,
            layers=self.layers,
            threshold=self.threshold,
            most_epochs=self.most_epochs,
            activation=self.activation,
            adaptation=self.adaptation,
        )


plugin = FedALA
