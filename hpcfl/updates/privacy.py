"""Differential privacy of clients: the clip of their updates, and the noise on their sum.

The specification is ``updates.md``, U1. ``overlay.py`` calls the functions of
``ClientPrivacy``: the clip is the last change of an update before it is sent, and the
noise is added on rank 0 to the result of the rule.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.experiment.sections import Privacy
from hpcfl.methods.base import Cohort
from hpcfl.rows import mixing, randomness
from hpcfl.updates.accounting import Guarantee
from hpcfl.updates.base import Context, Rule
from hpcfl.updates.private_cohort import PrivateCohort

COUNT_NOISE = 20  # the expected cohort over the deviation σ_b of the adaptive clip


def clip_updates(
    updates: Tensor, clip: float, layers: Sequence[slice]
) -> tuple[Tensor, Tensor]:
    """Return the updates [n, P] with each layer clipped to clip/√L, and the norms of the
    updates before, float64 [n] on the CPU.

    An update with a number that is not finite becomes zero. Products are rounded once.
    """
    clipped = torch.empty_like(updates)
    squares = torch.zeros(len(updates)).double()
    bound = clip / math.sqrt(len(layers))
    for position, update in enumerate(updates):
        exact = update.double()
        if not exact.isfinite().all():
            exact = torch.zeros_like(exact)
        for columns in layers:
            part = exact[columns]
            square = mixing.row_sums(part.square()[None])[0].item()
            squares[position] += square
            factor = bound / max(bound, math.sqrt(square))
            clipped[position, columns] = part * factor
    return clipped, squares.sqrt()


def move_clip(
    clip: float, below: float, privacy: Privacy, expected: float, noise: float
) -> float:
    """Return the adaptive clip C·exp(−η(b̃ − γ)) of the next round.

    Args:
        clip: The clip C of this round.
        below: The sum of b_i − ½ over the clients of the round.
        expected: The expected size of the cohort.
        noise: The noise on ``below``.
    """
    share = (below + noise) / expected + 0.5
    return clip * math.exp(-privacy.clip_rate * (share - privacy.clip_quantile))


def split_noise(sigma: float, count_noise: float) -> float:
    """Return the multiplier σ_Δ of the model's noise, so that it and the noise on the
    number of clients below the clip cost σ together.
    """
    return (sigma**-2 - (2 * count_noise) ** -2) ** -0.5 if sigma else 0.0


@dataclass(frozen=True)
class ClientPrivacy:
    """The clip and the noise of a run.

    Attributes:
        section: the keys.
        sigma: the multiplier σ, given or calibrated.
        guarantee: the cohorts and the accountant.
        seed: the experiment's.
        drops: whether clients of a round may be lost, so that the sum has fewer.
        rounds: the number of rounds of the run.
    """

    section: Privacy
    sigma: float
    guarantee: Guarantee
    seed: int
    drops: bool
    rounds: int

    @property
    def expected(self) -> float:
        """Return the divisor of the sum, the expected size of a cohort."""
        return self.guarantee.size

    @property
    def count_noise(self) -> float:
        """Return the deviation σ_b of the noise on the number below the clip."""
        return self.section.clip_noise or self.expected / COUNT_NOISE

    @property
    def model_sigma(self) -> float:
        """Return the multiplier of the model's noise."""
        if not self.section.adaptive_clip:
            return self.sigma
        return split_noise(self.sigma, self.count_noise)

    @property
    def has_effect(self) -> bool:
        """Return whether any mean of updates changes."""
        return self.section.clip is not None or self.drops

    def clip(
        self, updates: Tensor, clip: float, context: Context
    ) -> tuple[Tensor, Tensor]:
        """Return the clipped updates [n, P], with local noise, and the norms before,
        float64 [n].
        """
        whole = [slice(0, updates.shape[1])]
        layers = context.layers if self.section.clip_per == "layer" else whole
        clipped, norms = clip_updates(updates, clip, layers)
        if not (self.section.local and self.sigma):
            return clipped, norms
        for row, client in zip(clipped, context.ids.tolist(), strict=True):
            random = context.random_of("local noise", client)
            normal = torch.from_numpy(random.standard_normal(len(row))).to(row.device)
            row.copy_(row.double() + self.sigma * clip * normal)
        return clipped, norms

    def release(self, mean: Tensor, clients: int, clip: float, round: int) -> Tensor:
        """Return the noisy sum of the updates over the expected cohort, float64 [P].

        Args:
            mean: The mean over the clients of the round.
            clients: Their number.
            clip: The largest norm of an update in the sum.
        """
        result = mean.double() * (clients / self.expected)
        if self.section.local or not self.sigma:
            return result
        random = randomness.generator(self.seed, "privacy", "noise", round)
        normal = torch.from_numpy(random.standard_normal(len(result)))
        return result + self.model_sigma * clip / self.expected * normal

    def next_clip(self, clip: float, below: float, round: int) -> float:
        """Return the clip of the next round; arguments as for ``move_clip``."""
        noise = 0.0
        if self.sigma:
            random = randomness.generator(self.seed, "privacy", "clip", round)
            noise = self.count_noise * random.standard_normal()
        return move_clip(clip, below, self.section, self.expected, noise)

    def hide_clients(self, cohort: Cohort) -> PrivateCohort:
        """Return the cohort without the drawn clients."""
        expected_share = self.expected / cohort.setup.clients
        return PrivateCohort(cohort.setup, cohort.round, expected_share)

    def measure(
        self, clip: float, round: int, releases: int, rounding: float = 0.0
    ) -> dict[str, float]:
        """Return the numbers to record after a round: ε, C and the noise.

        Privacy loss distributions take seconds for each ε, so that they give that of the
        last round alone.

        Args:
            clip: C of the round.
            round: Its number.
            releases: The number of noisy sums so far, with local noise the largest
                number of uploads of one client.
            rounding: What secure sums add to the norm of a clipped update.
        """
        bound = clip if self.section.local else clip + rounding
        noise = self.model_sigma * bound if self.sigma else 0.0
        numbers = {"privacy/noise": noise}
        if math.isfinite(clip):
            numbers["privacy/clip"] = clip
        is_last = round == self.rounds
        if self.sigma and (is_last or self.section.accountant == "rdp"):
            epsilon = self.guarantee.epsilon(self.sigma, releases)
            numbers["privacy/epsilon"] = epsilon
        return numbers

    def describe(self, rounds: int, cohort: Callable[[int], np.ndarray]) -> list[str]:
        """Return lines for ``hpcfl check``; arguments as for ``Overlay.describe``."""
        uploads = rounds
        if self.section.local:
            uploads = count_most_rounds(map(cohort, range(1, rounds + 1)))
        epsilon = self.guarantee.epsilon(self.sigma, uploads)
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
            "  ε covers one run: each further run of a search costs privacy as well. "
            "Scores belong to the simulation and are not released",
        ]


def count_most_rounds(cohorts: "map[np.ndarray]") -> int:
    """Return the largest number of cohorts that have one client."""
    everyone = np.concatenate([np.zeros(0, np.int64), *cohorts])
    return int(np.bincount(everyone, minlength=1).max())


def make_privacy(config: Config, rule: Rule) -> ClientPrivacy | None:
    """Return the clip and the noise that an experiment asks for; None without
    ``[privacy]``.

    Raises UserError for sections that the guarantee does not cover.
    """
    section = config.privacy
    if section is None:
        return None
    refuse_uncovered(config, section, rule)
    participation = config.participation
    guarantee = find_guarantee(config, section)
    if section.accountant == "pld" and guarantee.replaces_one:
        raise UserError(
            "privacy.accountant = 'pld' knows no cohorts of a fixed size; take 'rdp', or "
            "set participation.scheme = 'poisson'"
        )
    sigma = section.noise or 0.0
    if section.epsilon is not None:
        sigma = guarantee.calibrate(section.epsilon, config.rounds)
    elif sigma:
        guarantee.epsilon(sigma, 1)
    excludes = config.training.on_divergence == "exclude"
    varies = participation.scheme == "poisson" or participation.dropout
    drops = bool(varies or excludes or config.time.mode != "none")
    privacy = ClientPrivacy(
        section, sigma, guarantee, config.seed, drops, config.rounds
    )
    most = 2 * privacy.count_noise
    if section.adaptive_clip and sigma >= most:
        raise UserError(
            f"privacy.noise = {sigma:g}: must be below 2·clip_noise = {most:g}, the noise "
            "of the adaptive clip; raise privacy.clip_noise or the cohort"
        )
    return privacy


def find_guarantee(config: Config, section: Privacy) -> Guarantee:
    """Return the cohorts and the accountant of an experiment."""
    participation, clients = config.participation, config.partition.clients
    size: float = participation.count(clients)
    if participation.scheme == "poisson":
        size = participation.fraction * clients
    return Guarantee(
        cohort="local" if section.local else participation.scheme,
        clients=clients,
        size=size,
        accountant=section.accountant,
        delta=section.delta,
    )


def describe_cost(config: Config, begun_for: int) -> str:
    """Return a line on the ε of ``config.rounds`` with the noise that was calibrated for
    ``begun_for`` rounds.
    """
    section = config.privacy
    assert section is not None and section.epsilon is not None
    guarantee = find_guarantee(config, section)
    sigma = guarantee.calibrate(section.epsilon, begun_for)
    cost = guarantee.epsilon(sigma, config.rounds)
    return (
        f"privacy.epsilon = {section.epsilon:g} is spent after {begun_for} rounds; "
        f"{config.rounds} rounds with the same noise would cost ε = {cost:.4g}"
    )


def refuse_uncovered(config: Config, section: Privacy, rule: Rule) -> None:
    """Raise UserError for a section that the guarantee does not cover."""
    participation, time = config.participation, config.time
    if getattr(config.method, "weights", "uniform") != "uniform":
        raise UserError(
            "method.weights = 'samples': numbers of samples are data that [privacy] does "
            "not cover; set method.weights = 'uniform' or leave it out"
        )
    if participation.select != "uniform":
        raise UserError(
            f"participation.select = '{participation.select}': [privacy] covers uniformly "
            "drawn cohorts; take 'uniform'"
        )
    if time.mode != "none" and (
        time.over_selection > 1 or time.availability != "always"
    ):
        raise UserError(
            "time.over_selection and time.availability make a cohort depend on the "
            "clients, which [privacy] does not cover; leave both out"
        )
    if not (section.local or rule.allows_noise):
        raise UserError(
            f"aggregation.rule = '{rule.rule}': the noise of [privacy] is made for means; "
            "take 'mean', or set privacy.local = true"
        )
