"""Sample-level privacy: the noise multiplier and the ε of each client.

The specification is ``updates.md``, U2. Local training draws Poisson mini-batches, clips
the gradient of each sample and adds noise (``clients/sample_privacy.py``). This module

* refuses sections that the guarantee does not cover,
* calibrates the noise multipliers σ_i,
* counts each client's mini-batches over the rounds and computes their ε.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcfl.clients import Fleet
from hpcfl.clients.batch_plan import MOST_GRADIENTS, TrainingRequest
from hpcfl.clients.sample_privacy import SamplePrivacy
from hpcfl.communication.message import Inbox, Message
from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.experiment.sections import Privacy
from hpcfl.methods.base import Method, Overlay, Setup, State
from hpcfl.updates.accounting import Guarantee

# Name of a client's number of mini-batches by the number of gradients taken of each.
STEPS = "privacy.noisy_batches"


def make_guarantee(samples: int, size: int, delta: float) -> Guarantee:
    """Return the sampling of a client's mini-batches.

    Args:
        samples: The client's number of samples N_i.
        size: The expected size of a mini-batch, before it is limited to N_i.
        delta: The probability δ.
    """
    return Guarantee(
        cohort="poisson",
        clients=samples,
        size=min(size, samples),
        accountant="rdp",
        delta=delta,
    )


def find_epsilon(guarantee: Guarantee, sigma: float, batches: Sequence[int]) -> float:
    """Return ε after a number of mini-batches.

    g gradients of the same mini-batch count as one release of a vector g times as long,
    whose noise multiplier is σ/√g.

    Args:
        guarantee: The sampling.
        sigma: The multiplier σ of each gradient.
        batches: At index g, the number of mini-batches of which g gradients were taken.
    """
    return guarantee.compose(_scale(sigma, batches))


def find_sigma(guarantee: Guarantee, epsilon: float, batches: Sequence[int]) -> float:
    """Return the least σ with which mini-batches cost at most ε; 0 without
    mini-batches.

    Args:
        guarantee: The sampling.
        epsilon: The budget ε.
        batches: The numbers of mini-batches, as for ``find_epsilon``.
    """
    shares = _scale(1.0, batches)
    return guarantee.calibrate(epsilon, shares) if shares else 0.0


def _scale(sigma: float, batches: Sequence[int]) -> dict[float, int]:
    """Return the number of mini-batches by noise multiplier."""
    steps = {}
    for gradients, count in enumerate(batches):
        if gradients and count:
            steps[sigma / math.sqrt(gradients)] = int(count)
    return steps


def count_batches(
    trainings: Sequence[TrainingRequest], samples: int, size: int
) -> list[int]:
    """Return, at index g, the number of mini-batches per round of which g gradients are
    taken.

    Args:
        trainings: The local trainings of a round.
        samples: The client's number of samples N_i.
        size: The expected size of a mini-batch.
    """
    batches = [0] * (MOST_GRADIENTS + 1)
    for training in trainings:
        steps = math.ceil(samples / size)
        if training.steps is not None:
            steps = min(steps, training.steps)
        batches[training.gradients] += training.epochs * steps
    return batches


@dataclass(frozen=True)
class SampleLevel(Overlay):
    """Overlay that counts each client's mini-batches.

    Client: ``privacy.noisy_batches`` int64 [MOST_GRADIENTS + 1], at index g the number
    of mini-batches of which the client has taken g gradients.

    Attributes:
        section: Keys of ``[privacy]``.
        size: Expected size of a mini-batch.
    """

    section: Privacy
    size: int

    def client_state(self, setup: Setup) -> State:
        return {STEPS: torch.zeros(MOST_GRADIENTS + 1, dtype=torch.int64)}

    def upload(self, fleet: Fleet, inbox: Inbox, message: Message) -> Message:
        """Count the mini-batches of the round, record ε and return the message
        unchanged.

        Raises UserError if a client has spent more than ``privacy.epsilon``.
        """
        batches = fleet.state[STEPS].cpu()
        if fleet.results.noisy_batches is not None:
            batches = batches + torch.from_numpy(fleet.results.noisy_batches)
        fleet.state[STEPS] = batches.to(fleet.state[STEPS].device)
        privacy = fleet.resources.privacy
        if privacy is None or not privacy.noise.any():
            return message
        sizes = fleet.samples.tolist()
        spent = []
        for client, samples, row in zip(
            fleet.ids.tolist(), sizes, batches.tolist(), strict=True
        ):
            spent.append(self._find_epsilon(privacy, client, int(samples), row))
        fleet.results.epsilon = np.array(spent)
        return message

    def _find_epsilon(
        self, privacy: SamplePrivacy, client: int, samples: int, batches: list[int]
    ) -> float:
        """Return a client's ε. Raises UserError if it exceeds ``privacy.epsilon``."""
        guarantee = make_guarantee(samples, self.size, self.section.delta)
        epsilon = find_epsilon(guarantee, float(privacy.noise[client]), batches)
        most = self.section.epsilon
        if most is not None and epsilon > most * 1.001:
            raise UserError(
                f"client {client} has spent ε = {epsilon:.4g}, more than privacy.epsilon = "
                f"{most:g}, because the method trains longer than in round 1; set "
                "privacy.noise instead"
            )
        return epsilon


def make_sample_privacy(
    config: Config, method: Method, clients: int, has_statistics: bool
) -> SamplePrivacy:
    """Return the clip and the noise of local training with ``[privacy] unit =
    "sample"``.

    With a target ε the noise is NaN until ``calibrate`` sets it.

    Args:
        config: The experiment.
        method: The method of the experiment.
        clients: The number of clients and newcomers.
        has_statistics: Whether the model has batch norm.

    Raises:
        UserError: The guarantee does not cover a part of the experiment.
    """
    section = config.privacy
    assert section is not None
    refuse_uncovered(config, method)
    if has_statistics:
        raise UserError(
            "[privacy] unit = 'sample' does not cover batch norm, whose statistics mix "
            "samples; take a model with group or layer norm"
        )
    sigma = section.noise or 0.0
    if section.epsilon is not None:
        sigma = math.nan
    return SamplePrivacy(
        clip=section.clip or math.inf,
        noise=np.full(clients, sigma),
        private_variables=frozenset(method.private_variables),
    )


def refuse_uncovered(config: Config, method: Method) -> None:
    """Raise UserError for sections and keys of an experiment that the guarantee does
    not cover.
    """
    uncovered = {
        "method.ala = true, whose learned weights read samples; leave it out": bool(
            getattr(method, "ala", False)
        ),
        "methods that hold out samples for validation, such as method.name = "
        f"'{method.name}'": method.validation_share() > 0,
        f"participation.select = '{config.participation.select}', which reads losses; "
        "take 'uniform'": config.participation.select != "uniform",
        "time.mode = 'asynchronous'; take 'synchronous'": (
            config.time.mode == "asynchronous"
        ),
        "[[shift]], which changes a client's samples; leave it out": bool(config.shift),
        "newcomers.epochs, whose cost is not accounted for; set it to 0": bool(
            config.newcomers.clients and config.newcomers.epochs
        ),
        "training.drop_last = true; leave it out": config.training.drop_last,
    }
    for what, is_given in uncovered.items():
        if is_given:
            raise UserError(f"[privacy] unit = 'sample' does not cover {what}")


def calibrate(
    config: Config,
    privacy: SamplePrivacy,
    trainings: Sequence[TrainingRequest],
    samples: np.ndarray,
) -> SamplePrivacy:
    """Return the clip and the noise with which each client spends ``privacy.epsilon``
    if it takes part in all rounds; without a target ε return ``privacy`` unchanged.

    Args:
        config: The experiment.
        privacy: The clip, and noise to replace.
        trainings: The local trainings of a round.
        samples: The numbers of samples N_i of all clients and newcomers, int64 [clients
            and newcomers].
    """
    section = config.privacy
    if section is None:
        return privacy
    size = config.training.batch_size
    if section.epsilon is None:
        if section.noise:
            make_guarantee(1, size, section.delta).compute_epsilon(section.noise, 1)
        return privacy
    distinct, positions = np.unique(samples, return_inverse=True)
    sigmas = np.zeros(len(distinct))
    for place, count in enumerate(distinct.tolist()):
        of_round = count_batches(trainings, count, size)
        batches = [config.rounds * number for number in of_round]
        guarantee = make_guarantee(count, size, section.delta)
        sigmas[place] = find_sigma(guarantee, section.epsilon, batches)
    return replace(privacy, noise=sigmas[positions])


def describe(
    config: Config,
    privacy: SamplePrivacy,
    trainings: Sequence[TrainingRequest],
    samples: np.ndarray,
    cohort: Callable[[int], np.ndarray],
) -> list[str]:
    """Return lines for ``hpcfl check``.

    Args:
        config: The experiment.
        privacy: The clip and the noise.
        trainings: The local trainings of a round.
        samples: The numbers of samples N_i of the clients, int64 [clients].
        cohort: Function that returns the ids of the clients that train in a round.
    """
    section, size = config.privacy, config.training.batch_size
    assert section is not None
    rounds = np.zeros(len(samples), np.int64)
    for number in range(1, config.rounds + 1):
        rounds[cohort(number)] += 1
    known: dict[tuple[float, int, int], float] = {}
    spent = []
    for count, played, sigma in zip(
        samples.tolist(), rounds.tolist(), privacy.noise.tolist(), strict=False
    ):
        key = sigma, count, played
        if key not in known:
            batches = [played * one for one in count_batches(trainings, count, size)]
            guarantee = make_guarantee(count, size, section.delta)
            known[key] = find_epsilon(guarantee, sigma, batches)
        spent.append(known[key])
    rates = [min(1.0, size / max(1, count)) for count in samples.tolist()]
    clip = f"clip {section.clip:g} per sample" if section.clip else "no clip"
    sigmas = privacy.noise[: len(samples)]
    return [
        f"privacy of samples: {_describe_span('ε', spent)} per client at δ = {section.delta:g} "
        f"after {config.rounds} rounds (rdp)",
        f"  sampling: Poisson mini-batches with {_describe_span('q', rates)}; adjacency: add or "
        "remove one sample of a client",
        f"  {clip}; noise multiplier {_describe_span('σ', sigmas.tolist())}; sums are divided by "
        "the expected size of a mini-batch",
        "  ε holds for all uploads of a client and for its personal model; numbers of "
        "samples are public",
        "  ε covers one run; each further run of a search has an additional cost. "
        "Scores belong to the simulation and are not released",
    ]


def _describe_span(name: str, values: Sequence[float]) -> str:
    """Return a text with the smallest and the largest value."""
    low, high = min(values), max(values)
    if math.isinf(high):
        return f"no finite {name}"
    if f"{low:.4g}" == f"{high:.4g}":
        return f"{name} = {low:.4g}"
    return f"{name} from {low:.4g} to {high:.4g}"


def describe_noise(privacy: SamplePrivacy) -> Mapping[str, str]:
    """Return the noise as a decision that a resumed run must repeat."""
    return {
        "the noise multipliers of clients are": _describe_span(
            "σ", privacy.noise.tolist()
        )
    }
