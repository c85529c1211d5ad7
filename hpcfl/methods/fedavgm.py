"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi & Brown, "Measuring the effects of non-identical data distribution for federated
visual classification", arXiv 1909.06335, 2019. Δ is the weighted mean of the clients'
changes w_i − w. The server computes v ← βv + Δ and w ← w + η_s v, the heavy ball. With
``nesterov`` it computes w ← w + η_s(Δ + βv), as FL-bench does. v starts at 0, so the
first step is η_s Δ; fluke discards the first Δ (methods-3.md §6, item 9). A constant Δ
leads to steps of η_s/(1 − β)·Δ, so that with β = 0.9 and η_s = 1 large local rates
overshoot.
"""

import torch
from pydantic import Field

from hpcfl.methods.base import Cohort, State, search
from hpcfl.methods.fedavg import ServerModel


class FedAvgM(ServerModel):
    """State and traffic of FedAvgM.

    Server: ``model`` w and ``step`` v, [P] each. Client: none. Down P, up P.
    """

    family = "one global model"
    reference = "Hsu et al., arXiv 1909.06335"
    server_zeros = ("step",)
    momentum: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="momentum β, the weight of the last step; 0 is FedAvg",
        json_schema_extra=search(
            [0.0, 0.7, 0.9, 0.97, 0.99, 0.997], "Hsu et al., 2019"
        ),
    )
    server_lr: float = Field(1.0, ge=0, description="learning rate η_s of the server")
    nesterov: bool = Field(False, description="Nesterov's momentum, as in FL-bench")

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        average = uplink["model"]
        last = server["step"]
        step = self.momentum * last + average - server["model"]
        kept = self.momentum * (step if self.nesterov else last)
        # w + η_s·Δ; for η_s = 1 the result is exactly the average.
        moved = torch.lerp(server["model"], average, self.server_lr)
        server["model"] = moved + self.server_lr * kept
        server["step"] = step


plugin = FedAvgM
