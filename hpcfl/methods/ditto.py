"""Ditto: FedAvg, and for each client a personal model with a proximal term to the
shared model.

Li et al., "Ditto: Fair and robust federated learning through personalization", ICML
2021. After its local training for FedAvg a client takes the steps v_i ← v_i −
η[∇F_i(v_i) + λ(v_i − w)]. The RECEIVED w is constant in the round, and steps are plain
with every optimiser. ``training.clip`` clips ∇F_i, as in FedNH's code. The personal
model v_i stays with the client; the result is its score after training, ``post``.

The codes differ (methods-2.md §5, item 9). FedNH's uses the client's trained model as
anchor instead of w, as here with ``anchor = "trained"``. The authors' alternates the
two models' steps on the same mini-batch; here v_i has separate shuffles. PFLlib reports
the larger of both models' accuracies.
"""

from typing import Literal

from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.methods.base import ClientModel, Fleet, Inbox, search
from hpcfl.methods.fedavg import FedAvg


class Ditto(FedAvg):
    """State and traffic of Ditto.

    Server: ``model`` [P]. Client: ``personal`` v_i [P]. Down P, up P. ``global`` scores
    w.
    """

    primary = "post"
    family = "personal beside global"
    reference = "Li et al., ICML 2021"
    keeps = ("ala", "aggregation")
    unheeded = ("optimizer", "momentum", "weight_decay")
    models = ("model", "personal")
    client_models = inherited = ("personal",)
    lam: float = Field(
        0.1,
        ge=0,
        description="strength λ of the proximal term (FedNH 0.75); "
        "0 is Local in addition to FedAvg",
        json_schema_extra=search([0.0001, 0.001, 0.01, 0.1, 1.0, 10.0], "FedALA"),
    )
    personal_epochs: NonNegativeInt = Field(
        2,
        description="number s of epochs on the personal model (FedNH 5)",
        json_schema_extra=search(range(1, 11), "FedALA"),
    )
    anchor: Literal["received", "trained"] = Field(
        "received", description="anchor of the proximal term: w, or the trained w_i"
    )

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        trained = super().local_train(fleet, rows, inbox)
        anchor = (
            fleet.rows(self.received(fleet, inbox))
            if self.anchor == "received"
            else trained
        )
        rate = fleet.learning_rate

        def descend(personal: Tensor, gradient: Tensor, anchor: Tensor) -> None:
            personal -= (personal - anchor).mul_(self.lam).add_(gradient).mul_(rate)

        fleet.state["personal"], _ = fleet.train_by(
            lambda context: context.apply_elementwise(
                descend, context.variables["anchor"], clip=True
            ),
            fleet.state["personal"],
            epochs=self.personal_epochs,
            phase="personal",
            model="personal",
            variables={**self.loss_variables(fleet, inbox), "anchor": anchor},
            # Only for the recorded loss; ``descend`` computes the term itself.
            proximal=(self.lam, anchor),
        )
        return trained

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(fleet.state["personal"], model="personal")


plugin = Ditto
