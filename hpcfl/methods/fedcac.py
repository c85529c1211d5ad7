"""FedCAC: parameters that matter to a client are averaged with similar clients only, all others
with everybody.

Wu et al., "Bold but cautious: Unlocking the potential of personalized federated learning through cautiously
aggressive collaboration", ICCV 2023. After training a client marks in each tensor the share τ of entries
with the largest |(θ_after − θ_before)·θ_after|. With masks m and O_ij = 1 − ‖m_i − m_j‖₁/(2‖m_i‖₁), client
i's group is itself and all j with O_ij ≥ ρ_t = mean O + (t/β)(max O − mean O). Marked entries restart from
the group's uniform mean, the rest from the global average. Only those who uploaded form groups; others keep
their marked entries. PFLlib's first round restores initial weights in marked entries; here nothing is mixed
before the first upload.
"""


import torch
from pydantic import Field as Key
from torch import Tensor

from hpcfl.communication.message import Field, Inbox, Message
from hpcfl.fleet import Fleet
from hpcfl.methods.base import Audience, Cohort, Setup, State
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import mixing, sums
from hpcfl.rows.layout import Layout

NOTHING, SOMETHING = 1e-10, 1e-20  # a threshold so small gives way to the smallest entry above the second
ROUNDING = 1e-12  # of a mean of equal overlaps


def critical(layout: Layout, before: Tensor, after: Tensor, share: float) -> Tensor:
    """Masks bool [n, P] of rows before and after training: in each tensor the ⌊share·size⌋ most
    sensitive entries.

    Entries equal to the last of them are marked too. Without any change nothing is.
    """
    masks = torch.zeros_like(after, dtype=torch.bool)
    sensitivity = ((after - before) * after).abs()
    for start, size in zip(layout.offsets, layout.sizes, strict=False):
        if count := int(share * size):
            part = sensitivity[:, start:start + size]
            threshold = part.kthvalue(size - count + 1, dim=1, keepdim=True).values
            smallest = part.masked_fill(part <= SOMETHING, torch.inf).amin(dim=1, keepdim=True)
            masks[:, start:start + size] = part >= torch.where(threshold <= NOTHING, smallest, threshold)
    return masks


def overlaps(masks: Tensor) -> Tensor:
    """O [n, n] of masks bool [n, P], float64; 0 for a client whose mask is empty, and on the diagonal."""
    # whole numbers: exact in any order
    both = mixing.total(lambda block: block.double() @ block.double().T, masks)
    sizes = both.diagonal()[:, None]
    differing = sizes + sizes.T - 2 * both
    return torch.where(sizes > 0, 1 - differing / (2 * sizes).clamp(min=1), 0).fill_diagonal_(0)


def groups(overlap: Tensor, marked: Tensor, progress: float) -> Tensor:
    """C [n, n]: uniform weights over each client's group at ``progress`` t/β; ``marked`` bool [n]:
    its mask is not empty."""
    itself = torch.eye(len(overlap), dtype=torch.bool)
    if len(overlap) == 1:
        return itself.double()
    others = overlap[~itself]
    bound = others.mean() + progress * (others.max() - others.mean())
    member = itself | (marked[:, None] & (overlap >= bound - ROUNDING))
    return member / member.sum(dim=1, keepdim=True).double()


class FedCAC(ServerModel):
    """Server: ``model`` [P] the global average, ``custom`` [M, P] groups' means, ``masks`` [M, P].
    Client: ``model`` [P].

    Down P (the server mixes), up P + P bits.
    """

    primary = "post"
    family = "personal models, mixed on the server"
    reference = "Wu et al., ICCV 2023"
    tau: float = Key(0.5, ge=0, le=1, description="share τ of critical entries in each tensor (0.4 for "
                                                  "CIFAR-100); 0 is FedAvg")
    beta: float = Key(100.0, gt=0,
                      description="round β from which groups are single clients (170 for CIFAR-100)")

    def server_state(self, setup: Setup) -> State:
        model = setup.initial()
        return {"model": model, "custom": mixing.repeated(model, setup.clients),
                "masks": mixing.repeated(torch.zeros_like(model, dtype=torch.bool), setup.clients)}

    def client_state(self, setup: Setup) -> State:
        return {**super().client_state(setup), "model": setup.initial()}

    def keep(self, fleet: Fleet, trained: Tensor) -> None:
        fleet.state["model"] = trained

    def send(self, server: State, audience: Audience) -> Message:
        ids = torch.from_numpy(audience.ids)
        masks, custom = (mixing.picked(server[name], ids) for name in ("masks", "custom"))
        return {"model": torch.where(masks, custom, server["model"], out=custom)}

    def reply(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        mask = critical(fleet.layout, self.received(fleet, inbox), trained, self.tau)
        return {"model": trained, "mask": Field(mask, floats=mask.shape[1] / 32)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids, models, masks = torch.from_numpy(cohort.ids), uplink["model"], uplink["mask"]
        server["model"] = sums.mean(models, cohort.shares)
        matrix = groups(overlaps(masks), masks.any(dim=1), cohort.round / self.beta)
        server["custom"] = mixing.replaced(server["custom"], ids, mixing.mix(matrix, models))
        server["masks"] = mixing.replaced(server["masks"], ids, masks)


plugin = FedCAC
