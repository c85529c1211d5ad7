"""pFedHN: a hypernetwork of the server computes each client's model from a learned
embedding of the client.

Shamsian et al., "Personalized federated learning using hypernetworks", ICML 2021. The
hypernetwork H has an embedding e_i of each client, a perceptron f with widths e → h → …
→ h, and one linear layer to all parameters of a model: θ_i = H(e_i) = Σ_k f_k(e_i) W_k
+ b. A client trains from θ_i to θ̃_i. Δ_i = θ_i − θ̃_i represents the gradient with
respect to its model. By the chain rule ∇_φ H(e_i)·Δ_i is a gradient for all of H's
parameters φ. The server takes a step of SGD with momentum and weight decay along the
mean of these over the cohort, clipped to a norm. The result is the received θ_i, before
training. With ``head = "private"`` (pFedHN-PC) H computes only the body, and each
client has a private head.

The authors' code takes 5,000 steps with one client each; FL-bench takes a step after
each client of the cohort. Here a round is one step with the whole cohort, so a cohort
of one client gives the authors' steps (methods-3.md §15). Weight decay and momentum
also change the embeddings of clients outside the cohort, as in the authors' code. There
a client takes ``inner_steps`` = 50 mini-batches, each the first of a new shuffle. Here
it trains for ``training.epochs`` unless this key is set.
"""

from typing import Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import linear

from hpcfl.methods._server_model import ServerModel
from hpcfl.methods.base import (
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Layout,
    Message,
    Mixture,
    Setup,
    State,
    search,
)
from hpcfl.rows import mixing

MUCH = 1e9  # bytes of a hypernetwork from which a note is printed
MOMENTUM = "momentum."  # prefix of the names of the momentum of φ's tensors


class PFedHN(ServerModel):
    """State and traffic of pFedHN.

    Server: the tensors φ and the ``momentum.NAME`` of each. φ are ``embeddings`` [M,
    e], ``layer0.weight`` and so on of the perceptron, and ``output`` [h + 1, P], which
    is W with the bias b as last row. Client: none; with a private head ``head`` [P_h].
    Down P, up P; with a private head P_b.
    """

    family = "made by the server"
    reference = "Shamsian et al., ICML 2021"
    no_newcomers = "because a client's model is computed from an embedding that its training learns"
    short = {"hidden": 8, "hidden_layers": 1}
    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the cohort's clients in the gradient"
    )
    embedding: PositiveInt | None = Field(
        None,
        le=100_000,
        description="width e of an embedding; default: ⌊1 + clients/4⌋",
    )
    hidden: PositiveInt = Field(
        100, le=10_000, description="width h of the hypernetwork's layers"
    )
    hidden_layers: NonNegativeInt = Field(
        3, le=100, description="number of further layers h → h of the hypernetwork"
    )
    hyper_lr: float = Field(
        0.01,
        gt=0,
        description="learning rate of the hypernetwork",
        json_schema_extra=search([0.001, 0.01, 0.1], "around the authors' 0.01"),
    )
    hyper_momentum: float = Field(
        0.9, ge=0, lt=1, description="momentum of the hypernetwork"
    )
    hyper_decay: float = Field(
        0.001, ge=0, description="weight decay of the hypernetwork"
    )
    hyper_clip: float = Field(
        50.0, gt=0, description="maximal norm of the hypernetwork's gradient"
    )
    inner_steps: PositiveInt | None = Field(
        None,
        description="mini-batches of a client per round, each from a new shuffle (the authors "
        "50); default: training.epochs",
    )
    head: Literal["generated", "private"] = Field(
        "generated",
        description="heads computed by the hypernetwork, or private to each client",
    )

    def find_generated_columns(self, layout: Layout) -> slice:
        """Return the columns of H's output: all, or the body's."""
        return layout.columns("all" if self.head == "generated" else "body")

    def notes(self, setup: Setup) -> list[str]:
        # Four bytes for each number, and four for its momentum.
        size = 8.0 * (self.hidden + 1) * setup.layout.width
        if size < MUCH:
            return []
        return [
            f"pfedhn: the hypernetwork and its momentum are {size / 1e9:.1f} GB on rank 0; "
            "reduce method.hidden to save memory"
        ]

    def server_state(self, setup: Setup) -> State:
        width = self.embedding or 1 + setup.clients // 4
        made = self.find_generated_columns(setup.layout)

        def network() -> nn.Module:
            layers = {"layer0": nn.Linear(width, self.hidden)}
            for number in range(1, self.hidden_layers + 1):
                layers[f"layer{number}"] = nn.Linear(self.hidden, self.hidden)
            layers["output"] = nn.Linear(self.hidden, made.stop)
            return nn.ModuleDict(
                {"embeddings": nn.Embedding(setup.clients, width), **layers}
            )

        tensors = setup.parameters(network, key=("hypernetwork",))
        weight, bias = tensors.pop("output.weight"), tensors.pop("output.bias")
        tensors["embeddings"] = tensors.pop("embeddings.weight")
        tensors["output"] = torch.cat([weight.T, bias[None]])
        momentum = {
            MOMENTUM + name: torch.zeros_like(tensor)
            for name, tensor in tensors.items()
        }
        return tensors | momentum

    def client_state(self, setup: Setup) -> State:
        state = super().client_state(setup)
        if self.head == "private":
            state["head"] = setup.initial()[
                self.find_generated_columns(setup.layout).stop :
            ]
        return state

    def send(self, server: State, audience: Audience) -> Message:
        # The product covers all clients, because its bits may depend on their number.
        weights = self.compute_row_weights(server)[audience.ids]
        rows = server["output"]
        return {"model": Mixture(rows, weights.double(), rows.dtype)}

    def compute_row_weights(self, network: State) -> Tensor:
        """Return the weight of each row of ``output`` in each client's model, [M, h +
        1].

        The weights are f(e_i), and 1 for the bias.
        """
        values = network["embeddings"]
        for number in range(self.hidden_layers + 1):
            if number:
                values = values.relu()
            name = f"layer{number}"
            values = linear(values, network[f"{name}.weight"], network[f"{name}.bias"])
        return torch.cat([values, torch.ones_like(values[:, :1])], dim=1)

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        made: Tensor = inbox["model"]
        if self.head == "generated":
            return made
        return torch.cat([made, fleet.state["head"]], dim=1)

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        # The authors take the first mini-batch of a fresh shuffle in every step.
        batches_in_epoch = None if self.inner_steps is None else 1
        return fleet.train(
            rows,
            epochs=self.inner_steps,
            steps=batches_in_epoch,
            variables=self.loss_variables(fleet, inbox),
        )

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        if self.head == "private":
            fleet.state["head"] = trained[
                :, self.find_generated_columns(fleet.layout).stop :
            ]

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        made = self.find_generated_columns(fleet.layout)
        return {"change": inbox["model"] - trained[:, made]}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        gradients = self.compute_gradients(server, cohort, uplink["change"])
        norm = torch.stack([part.double().norm() for part in gradients.values()]).norm()
        shrink = float((self.hyper_clip / norm.clamp(min=1e-300)).clamp(max=1))
        for name, gradient in gradients.items():
            values = server[name]
            direction = shrink * gradient + self.hyper_decay * values
            momentum = self.hyper_momentum * server[MOMENTUM + name] + direction
            server[MOMENTUM + name] = momentum
            server[name] = values - self.hyper_lr * momentum

    def compute_gradients(
        self, server: State, cohort: Cohort, changes: Tensor
    ) -> State:
        """Return the mean over the cohort of ∇_φ H(e_i)·Δ_i, by the names of φ's
        tensors.

        Args:
            server: The server's state.
            cohort: The n clients.
            changes: The changes Δ of the clients' models, [n, P].
        """
        # H's tensors are those with a momentum; the state may also hold averaged
        # statistics of batch norm.
        network = {
            name: tensor.clone().requires_grad_()
            for name, tensor in server.items()
            if name != "output" and MOMENTUM + name in server
        }
        weights = self.compute_row_weights(network)[cohort.ids]
        shares = cohort.weights[:, None].to(weights)
        mean = (shares * weights.detach()).T
        of_output = mixing.mix(mean, changes)
        # ⟨W_k, Δ_i⟩ is the gradient with respect to f_k(e_i).
        products = mixing.sum_blocks(
            lambda left, right: left.double() @ right.double().T,
            changes,
            server["output"],
        )
        slopes = shares * products.to(weights)
        found = torch.autograd.grad(weights, list(network.values()), slopes)
        return {**dict(zip(network, found, strict=True)), "output": of_output}


plugin = PFedHN
