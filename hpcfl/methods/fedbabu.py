"""FedBABU: clients train the body under one random head that never changes, and
fine-tune at the end.

Oh, Kim & Yun, "FedBABU: Toward enhanced representation for federated image
classification", ICLR 2022. Clients train the body under the initial head h⁰, and b ←
Σ_S p_i b_i. After the last round every client fine-tunes body and head from (b, h⁰).
Its score is the column ``tuned``, the method's result. FedNH's and PFLlib's codes
fine-tune each client's last local model instead, as here with ``tune_from = "local"``.
"""

from typing import Literal

from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.methods._shared_part import SharedBody
from hpcfl.methods.base import Fleet, Inbox, Setup, State, search


class FedBABU(SharedBody):
    """State and traffic of FedBABU.

    Server: ``model`` [P], the shared body followed by h⁰. Down P_b, up P_b. Client:
    none; with ``tune_from = "local"`` its last model ``local`` [P].
    """

    primary = "tuned"
    trains = {"body": "nothing would be shared"}
    reference = "Oh et al., ICLR 2022"
    short = {"tune_epochs": 1, "tune_from": "local"}
    tune_epochs: NonNegativeInt = Field(
        5,
        description="epochs of fine-tuning after the last round (FedNH 5, PFLlib 10)",
        json_schema_extra=search([1, 5, 10], "FedNH's and PFLlib's, and one"),
    )
    tune_from: Literal["global", "local"] = Field(
        "global", description="model that a client fine-tunes"
    )

    def client_state(self, setup: Setup) -> State:
        state = super().client_state(setup)
        if self.tune_from == "local":
            return {**state, "local": setup.initial()}
        return state

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        if self.tune_from == "local":
            fleet.state["local"] = trained

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        """Train the body, for newcomers also the head, as all clients do at the end."""
        variables = self.loss_variables(fleet, inbox)
        if (fleet.ids >= fleet.setup.clients).any():
            return fleet.train(rows, phase="tune", variables=variables)
        return fleet.train(rows, params=("body",), variables=variables)

    def finish(self, fleet: Fleet, inbox: Inbox) -> None:
        super().finish(fleet, inbox)
        start = fleet.state.get("local", self.received(fleet, inbox))
        tuned = fleet.train(
            start,
            epochs=self.tune_epochs,
            phase="tune",
            variables=self.loss_variables(fleet, inbox),
        )
        fleet.score("tuned", tuned)


plugin = FedBABU
