"""FedAvg: one global model, the weighted mean of the clients' models.

McMahan et al., "Communication-efficient learning of deep networks from decentralized
data", AISTATS 2017. The clients of a cohort S train from the server's model w and
upload their models: ``w ← Σ_S N_i w_i / Σ_S N_i``. The result is ``pre``, before local
training (methods-1.md §2.1).

``FedAvg`` is the base of all methods whose server averages whole models. It extends
``ServerModel``, the base of methods whose clients start from a model of the server.
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from torch import Tensor, nn

# Other methods import ServerModel from this module.
from hpcfl.methods._server_model import ServerModel as ServerModel
from hpcfl.methods.base import Batch, Fleet, Inbox, Loss, Overlay, State, head_of

if TYPE_CHECKING:
    from hpcfl.methods.overlays.class_wise import ClassWise


class FedAvg(ServerModel):
    """Base of methods whose server averages whole models.

    Server: ``model`` [P]. Client: none. Down P, up P.

    With ``aggregation = "class-wise"`` the models are averaged by class as well, and
    clients start from their mix of the class models (``overlays/class_wise.py``).
    """

    keeps = ("ala", "aggregation")
    aggregation: Literal["average", "class-wise"] = Field(
        "average",
        description="class-wise: clients receive cwFedAvg's mix (output layer, WDR with λ = 10) "
        "instead of the mean",
    )

    family = "one global model"
    reference = "McMahan et al., AISTATS 2017"

    @property
    def is_class_wise(self) -> bool:
        """True with ``aggregation = "class-wise"``."""
        return self.aggregation == "class-wise"

    def make_class_wise(self) -> "ClassWise":
        """Return the class-wise aggregation with the method's settings."""
        from hpcfl.methods.overlays.class_wise import ClassWise

        return ClassWise()

    def overlays(self) -> tuple[Overlay, ...]:
        return (self.make_class_wise(),) if self.is_class_wise else ()

    def adapt(self, model: nn.Module) -> nn.Module:
        if self.is_class_wise:
            head_of(model, self.name, trained=True)
        return super().adapt(model)

    def training_loss(self) -> Loss:
        return (
            self.compute_class_wise_loss
            if self.is_class_wise
            else super().training_loss()
        )

    def compute_class_wise_loss(
        self, model: nn.Module, batch: Batch, lane: Any
    ) -> Tensor:
        """Return ``loss`` with the regulariser of class-wise aggregation."""
        loss = self.loss(model, batch, lane)
        penalty = self.make_class_wise().compute_penalty(model, lane)
        return loss if penalty is None else loss + lane.regulariser(penalty)

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        variables = super().loss_variables(fleet, inbox)
        if not self.is_class_wise:
            return variables
        return {**variables, **self.make_class_wise().loss_variables(fleet)}

    def server_models(self, server: State) -> State:
        """Return the class models of class-wise aggregation."""
        if not self.is_class_wise:
            return {}
        from hpcfl.methods.overlays.class_wise import compute_class_models

        models = enumerate(compute_class_models(server))
        return {f"class {label}": model for label, model in models}


plugin = FedAvg
