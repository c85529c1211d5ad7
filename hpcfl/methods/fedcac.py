"""FedCAC: a client's critical parameters are averaged only with similar clients, its
other parameters with all clients.

Wu et al., "Bold but cautious: Unlocking the potential of personalized federated
learning through cautiously aggressive collaboration", ICCV 2023. After training from
θ_before to θ_after a client marks critical entries, its mask m_i. These are, in each
tensor, the share τ of entries with the largest |(θ_after − θ_before)·θ_after|. Masks
overlap by O_ij = 1 − ‖m_i − m_j‖₁/(2‖m_i‖₁). Client i's group in round t consists of
i and all j with O_ij ≥ mean O + (t/β)(max O − mean O), so that groups shrink to single
clients. In the next round marked entries start from the group's uniform mean, the rest
from the global average.

Only clients with an upload form groups; other clients keep their masks and the means of
their groups. PFLlib's first round sets marked entries to initial weights; here mixing
begins after the first upload (methods-2.md §11, item 9).
"""

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import (
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Layout,
    Message,
    Sent,
    Setup,
    State,
    search,
)
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import mixing, sums

# If the threshold of the sensitivity is at most NOTHING, the smallest sensitivity above
# SOMETHING replaces it.
NOTHING = 1e-10
SOMETHING = 1e-20
ROUNDING = 1e-12  # tolerance between equal overlaps and their mean


def find_critical(
    layout: Layout, before: Tensor, after: Tensor, share: float
) -> Tensor:
    """Return masks, bool [n, P]: in each tensor the ⌊share·size⌋ entries with the
    highest sensitivity.

    The sensitivity is |(after − before)·after|. Entries equal to the last marked one
    are marked too. A tensor that training left unchanged has no marks.

    Args:
        layout: The positions of the tensors in a row.
        before: Rows [n, P] before training.
        after: Rows [n, P] after training.
        share: The share τ in [0, 1].
    """
    masks = torch.zeros_like(after, dtype=torch.bool)
    sensitivity = ((after - before) * after).abs()
    for columns in layout.places.values():
        size = columns.stop - columns.start
        count = int(share * size)
        if not count:
            continue
        part = sensitivity[:, columns]
        threshold = part.kthvalue(size - count + 1, dim=1, keepdim=True).values
        moved = part.masked_fill(part <= SOMETHING, torch.inf)
        least_moved = moved.amin(dim=1, keepdim=True)
        threshold = torch.where(threshold <= NOTHING, least_moved, threshold)
        masks[:, columns] = part >= threshold
    return masks


def compute_overlaps(masks: Tensor) -> Tensor:
    """Return the overlaps O of ``masks`` [n, P], float64 [n, n]; 0 on the diagonal and
    in the row of an empty mask.
    """
    # Sums of whole numbers are exact in any order.
    both = mixing.sum_blocks(lambda block: block.double() @ block.double().T, masks)
    sizes = both.diagonal()[:, None]
    differing = sizes + sizes.T - 2 * both
    overlap = 1 - differing / (2 * sizes).clamp(min=1)
    return torch.where(sizes > 0, overlap, 0).fill_diagonal_(0)


def weigh_groups(overlap: Tensor, marked: Tensor, progress: float) -> Tensor:
    """Return the weights [n, n] of each client's group, float64, uniform over its
    members.

    Args:
        overlap: The overlaps O [n, n].
        marked: Mask of the clients with a nonempty mask, bool [n].
        progress: The progress t/β.
    """
    itself = torch.eye(len(overlap), dtype=torch.bool)
    if len(overlap) == 1:
        return itself.double()
    of_others = overlap[~itself]
    mean = of_others.mean()
    bound = mean + progress * (of_others.max() - mean)
    similar = marked[:, None] & (overlap >= bound - ROUNDING)
    member = itself | similar
    return member / member.sum(dim=1, keepdim=True).double()


class FedCAC(ServerModel):
    """State and traffic of FedCAC.

    Server: ``model`` [P], the global average; ``custom`` [M, P], the means of the
    clients' groups; ``masks``, bool [M, P]. Client: ``model`` [P]. Down P, because the
    server mixes; up P and P bits.
    """

    primary = "post"
    family = "mixed on the server"
    reference = "Wu et al., ICCV 2023"
    keeps = ("ala",)
    last_model = "model"
    tau: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share τ of critical entries in each tensor (0.4 for "
        "CIFAR-100); 0 is FedAvg",
        json_schema_extra=search(
            [0.1, 0.3, 0.4, 0.5, 0.7, 0.9], "around the authors' 0.4 and 0.5"
        ),
    )
    beta: float = Field(
        100.0,
        gt=0,
        description="round β from which groups are single clients (170 for CIFAR-100)",
        json_schema_extra=search(
            [10.0, 100.0, 170.0, 1000.0], "the authors', a tenth and ten times"
        ),
    )

    def server_state(self, setup: Setup) -> State:
        model = setup.initial()
        empty_mask = torch.zeros_like(model, dtype=torch.bool)
        return {
            "model": model,
            "custom": mixing.repeat(model, setup.clients),
            "masks": mixing.repeat(empty_mask, setup.clients),
        }

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Add ``start`` [n, P], the models before training; with ``ala`` they differ
        from the received ones.
        """
        return {**inbox, "start": super().start(fleet, inbox)}

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        start: Tensor = inbox["start"]
        return start

    def send(self, server: State, audience: Audience) -> Message:
        ids = torch.from_numpy(audience.ids)
        masks = mixing.pick(server["masks"], ids)
        custom = mixing.pick(server["custom"], ids)
        return {"model": torch.where(masks, custom, server["model"], out=custom)}

    def send_to_newcomers(self, server: State, audience: Audience) -> Message:
        return {"model": server["model"]}  # newcomers have no mask yet

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        mask = find_critical(fleet.layout, inbox["start"], trained, self.tau)
        return {"model": trained, "mask": Sent(mask, floats=mask.shape[1] / 32)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        models = uplink["model"]
        masks = uplink["mask"]
        progress = cohort.round / self.beta
        group_weights = weigh_groups(
            compute_overlaps(masks), masks.any(dim=1), progress
        )
        group_means = mixing.mix(group_weights, models)
        server["model"] = sums.compute_mean(models, cohort.shares)
        server["custom"] = mixing.replace(server["custom"], ids, group_means)
        server["masks"] = mixing.replace(server["masks"], ids, masks)


plugin = FedCAC
