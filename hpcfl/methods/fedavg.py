"""FedAvg: one global model, the weighted mean of the clients' models.

McMahan et al., "Communication-efficient learning of deep networks from decentralized
data", AISTATS 2017. The clients of a cohort S train from the server's model w and send
theirs up: ``w ← Σ_S N_i w_i / Σ_S N_i``. The result is ``pre``, before local training
(methods-1.md §2.1).

``FedAvg`` is the base of all methods whose server averages whole models. It extends
``ServerModel``, the base of those whose clients start from a model of the server.
"""

from typing import ClassVar

from hpcfl.methods._server_model import (
    ServerModel as ServerModel,
)  # other methods import it from this module


class FedAvg(ServerModel):
    """Base of methods whose server averages whole models.

    Server: ``model`` [P]. Client: none. Down P, up P.
    """

    family: ClassVar[str] = "one global model"
    reference = "McMahan et al., AISTATS 2017"


plugin = FedAvg
