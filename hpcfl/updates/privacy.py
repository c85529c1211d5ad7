"""Differential privacy of clients: clipping of their updates and noise on their sum.

The specification is ``updates.md``, U1. ``overlay.py`` calls the methods of
``ClientPrivacy``. Clipping is the last change of an update before it is sent, and rank
0 adds the noise to the result of the rule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.experiment.sections import Privacy
from hpcfl.methods.base import Cohort, State
from hpcfl.rows import randomness
from hpcfl.updates.accounting import Guarantee
from hpcfl.updates.base import Context
from hpcfl.updates.clipping import clip_updates, move_clip, split_noise
from hpcfl.updates.memory import MEMORY
from hpcfl.updates.private_cohort import PrivateCohort
from hpcfl.updates.vectors import CLIP

COUNT_NOISE = 20  # the expected cohort divided by the default σ_b
RELEASES = MEMORY + "releases"


@dataclass(frozen=True)
class ClientPrivacy:
    """Clip and noise of a run.

    Server: ``update.clip`` [2], the adaptive clip of the next round and of the last
    one; ``update.releases``, the number of noisy sums [1], or with local noise the
    number of uploads of each client [M].

    Attributes:
        section: Keys of ``[privacy]``.
        sigma: Noise multiplier σ, given or calibrated.
        guarantee: Sampling and accountant.
        seed: Seed of the experiment.
        drops: Whether a round may lose clients, so that its sum has fewer terms.
        rounds: Number of rounds of the run.
    """

    section: Privacy
    sigma: float
    guarantee: Guarantee
    seed: int
    drops: bool
    rounds: int

    @property
    def expected(self) -> float:
        """Return the expected size of a cohort, by which sums are divided."""
        return self.guarantee.size

    @property
    def count_noise(self) -> float:
        """Return the result of ``find_count_noise`` for this run."""
        return find_count_noise(self.section, self.guarantee)

    @property
    def model_sigma(self) -> float:
        """Return the multiplier of the noise on the sum of updates."""
        if not self.section.adaptive_clip:
            return self.sigma
        return split_noise(self.sigma, self.count_noise)

    @property
    def has_effect(self) -> bool:
        """Return whether the mean of updates may change."""
        return self.section.clip is not None or self.drops

    @property
    def clips(self) -> bool:
        """Return whether updates are clipped."""
        return self.section.clip is not None

    @property
    def first_clip(self) -> float:
        """Return the clip of round 1; infinity without clipping."""
        return math.inf if self.section.clip is None else self.section.clip

    def make_server_state(self, clients: int) -> State:
        """Return the server's state before round 1; ``clients`` is their total number."""
        state = {}
        if self.section.adaptive_clip:
            state[CLIP] = torch.tensor([self.first_clip] * 2).double()
        if self.has_effect:
            counted = clients if self.section.local else 1
            state[RELEASES] = torch.zeros(counted, dtype=torch.int64)
        return state

    def find_clip(self, server: State) -> float:
        """Return the clip of the next round."""
        if not self.section.adaptive_clip:
            return self.first_clip
        return float(server[CLIP][0])

    def clip(
        self, updates: Tensor, clip: float, context: Context
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the clipped updates [n, P], with local noise if the run has it, the
        norms before clipping, float64 [n], and whether clipping changed each update,
        bool [n].

        Args:
            updates: The updates [n, P].
            clip: The maximal norm of an update.
            context: Facts about the rows.
        """
        whole = [slice(0, updates.shape[1])]
        layers = context.layers if self.section.clip_per == "layer" else whole
        clipped, norms, is_clipped = clip_updates(updates, clip, layers)
        if not (self.section.local and self.sigma):
            return clipped, norms, is_clipped
        for row, client in zip(clipped, context.ids.tolist(), strict=True):
            random = context.random_of("local noise", client)
            normal = torch.from_numpy(random.standard_normal(len(row))).to(row.device)
            row.copy_(row.double() + self.sigma * clip * normal)
        return clipped, norms, is_clipped

    def release(self, mean: Tensor, clients: int, clip: float, round: int) -> Tensor:
        """Return the sum of the updates with noise, divided by the expected size of the
        cohort, float64 [P].

        Args:
            mean: The mean over the clients of the round [P].
            clients: The number of these clients.
            clip: The maximal norm of an update in the sum.
            round: The number of the round.
        """
        result = mean.double() * (clients / self.expected)
        if self.section.local or not self.sigma:
            return result
        random = randomness.generator(self.seed, "privacy", "noise", round)
        normal = torch.from_numpy(random.standard_normal(len(result)))
        return result + self.model_sigma * clip / self.expected * normal

    def remember(
        self, server: State, ids: np.ndarray, below: float, round: int
    ) -> None:
        """Store the next clip, and the number of noisy sums or, with local noise, of
        uploads of each client.

        Args:
            server: The server's state.
            ids: The clients of the round.
            below: The share of these clients with an update below the clip.
            round: The number of the round.
        """
        if self.section.adaptive_clip:
            clip, noise = self.find_clip(server), 0.0
            if self.sigma:
                random = randomness.generator(self.seed, "privacy", "clip", round)
                noise = self.count_noise * random.standard_normal()
            surplus = int(np.rint(below * len(ids))) - len(ids) / 2
            share = (surplus + noise) / self.expected + 0.5
            following = move_clip(clip, share, self.section)
            server[CLIP] = torch.tensor([following, clip]).double()
        if self.has_effect:
            places = ids if self.section.local else np.zeros(1, np.int64)
            positions = torch.from_numpy(places)
            ones = torch.ones_like(positions)
            server[RELEASES] = server[RELEASES].index_add(0, positions, ones)

    def measure(
        self, server: State, round: int, rounding: float = 0.0
    ) -> dict[str, float]:
        """Return the numbers to record after a round: ε, the clip C and the noise.

        With privacy loss distributions, ε is computed only for the last round, because
        it takes seconds.

        Args:
            server: The server's state.
            round: The number of the round.
            rounding: The amount by which secure sums may increase the norm of a clipped
                update.
        """
        clip, releases = self.first_clip, 0
        if self.section.adaptive_clip:
            clip = float(server[CLIP][1])
        if self.has_effect:
            releases = int(server[RELEASES].max())
        bound = clip if self.section.local else clip + rounding
        noise = self.model_sigma * bound if self.sigma else 0.0
        numbers = {"privacy/noise": noise}
        if math.isfinite(clip):
            numbers["privacy/clip"] = clip
        is_last = round == self.rounds
        if self.sigma and (is_last or self.section.accountant == "rdp"):
            epsilon = self.guarantee.compute_epsilon(self.sigma, releases)
            numbers["privacy/epsilon"] = epsilon
        return numbers

    def hide_clients(self, cohort: Cohort) -> PrivateCohort:
        """Return the cohort without the values that depend on the selected clients."""
        expected_share = self.expected / cohort.setup.clients
        return PrivateCohort(cohort.setup, cohort.round, expected_share)

    def describe(self, rounds: int, cohort: Callable[[int], np.ndarray]) -> list[str]:
        """Return lines for ``hpcfl check``.

        Args:
            rounds: The number of rounds with uploads.
            cohort: Function that returns the clients of a round.
        """
        uploads = rounds
        if self.section.local:
            uploads = count_most_rounds(map(cohort, range(1, rounds + 1)))
        epsilon = self.guarantee.compute_epsilon(self.sigma, uploads)
        cost = f"ε = {epsilon:.4g}" if math.isfinite(epsilon) else "no finite ε"
        clip = "no clip"
        if self.section.clip is not None:
            kind = "first adaptive clip" if self.section.adaptive_clip else "clip"
            clip = f"{kind} {self.section.clip:g} per {self.section.clip_per}"
        where = "on each client" if self.section.local else "on the server"
        return [
            f"privacy of clients: {cost} at δ = {self.section.delta:g} after {uploads} "
            f"rounds ({self.section.accountant})",
            f"  sampling: {self.guarantee.describe_sampling()}",
            f"  {clip}; noise multiplier σ = {self.sigma:g} {where}; sums are divided by "
            f"{self.expected:g}",
            "  ε holds for the models that the server sends, and as joint privacy for the "
            "clients' personal models",
            "  ε covers one run; each further run of a search has an additional cost. "
            "Scores belong to the simulation and are not released",
        ]


def find_count_noise(section: Privacy, guarantee: Guarantee) -> float:
    """Return the standard deviation σ_b of the noise on the number of updates below the
    clip.
    """
    return section.clip_noise or guarantee.size / COUNT_NOISE


def count_most_rounds(cohorts: "map[np.ndarray]") -> int:
    """Return the largest number of cohorts that contain the same client."""
    everyone = np.concatenate([np.zeros(0, np.int64), *cohorts])
    return int(np.bincount(everyone, minlength=1).max())
