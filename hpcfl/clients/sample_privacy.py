"""Sample-level privacy of local training: Poisson mini-batches, and noise on the sums of
clipped gradients of samples.

The specification is ``updates/updates.md``, U2. ``training.py`` trains on
``PoissonBatches`` in place of its own mini-batches. ``updates/sample_level.py`` accounts
for them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.batch_plan import MOST_GRADIENTS, BatchRun, MiniBatches
from hpcfl.clients.execution import NO_SAMPLE, PIECE, Session, Work
from hpcfl.clients.losses import Batch, Lanes, Tensors
from hpcfl.clients.scoring import pad_positions
from hpcfl.errors import UserError
from hpcfl.rows import mixing, randomness


@dataclass(frozen=True)
class SamplePrivacy:
    """The clip and the noise of all local training.

    Attributes:
        clip: the largest norm C of a sample's gradient; infinite without a clip.
        noise: the multipliers σ_i of all clients, float64 [clients and newcomers]; NaN
            until they are calibrated.
        private_variables: names of variables that a loss may read.
    """

    clip: float
    noise: np.ndarray
    private_variables: frozenset[str]

    def without_noise(self) -> "SamplePrivacy":
        """Return the same clip for a trial, in which nothing is released."""
        return replace(self, noise=np.zeros_like(self.noise))

    def refuse(self, what: str) -> None:
        """Raise UserError for a part of a method that the guarantee does not cover."""
        raise UserError(
            f"[privacy] unit = 'sample' does not cover {what}; take a method that reads "
            "samples through gradients of a loss alone, such as FedAvg, Ditto or MR-MTL"
        )

    def draw_batches(self, **given: Any) -> "PoissonBatches":
        """Return the mini-batches of a chunk, from the fields of ``MiniBatches``."""
        return PoissonBatches(privacy=self, **given)


@dataclass(kw_only=True)
class PoissonBatches(MiniBatches):
    """Poisson mini-batches of a chunk's lanes, all padded to the largest one, with noise
    on the sums of their clipped gradients.
    """

    privacy: SamplePrivacy

    def begin(self, work: Work) -> "PrivateSession":
        """Return a session that adds noise. Raises ValueError for noise that is not
        calibrated.
        """
        privacy, deviations = self.privacy, []
        for lane in self.lanes:
            sigma = float(privacy.noise[lane.client])
            if math.isnan(sigma):
                raise ValueError("the noise is not calibrated; run the preflight first")
            deviations.append(sigma * privacy.clip if sigma else 0.0)
        readable = {}
        for name, value in work.variables.items():
            if name in privacy.private_variables:
                readable[name] = value
        clipped = replace(work, variables=readable, clip=privacy.clip)
        noise = StepNoise(self.seed, self.phase, self.keys, deviations)
        expected = [min(self.size, len(lane.pool)) for lane in self.lanes]
        return PrivateSession(super().begin(clipped), noise, expected)

    def draw(self, epoch: int) -> tuple[list[np.ndarray], int]:
        """Return positions as ``MiniBatches.draw``, −1 where a mini-batch is padded."""
        batches = []
        for lane, client_key in zip(self.lanes, self.keys, strict=True):
            key = self.phase, *client_key, epoch
            steps = -(-lane.length // self.size)
            drawn = draw_batches(len(lane.pool), self.size, steps, self.seed, *key)
            ends = np.cumsum([len(batch) for batch in drawn])
            order = self.samples.vary(lane.pool[np.concatenate(drawn)], self.seed, *key)
            batches.append(np.split(order, ends[:-1]))
        largest = max(len(batch) for drawn in batches for batch in drawn)
        # a positive multiple of a piece
        width = PIECE * max(1, math.ceil(largest / PIECE))
        return [pad_positions(drawn, width).ravel() for drawn in batches], width

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at drawn positions; padding has the class NO_SAMPLE."""
        x, y = super().take(index.clamp(min=0))
        return x, y.masked_fill(index < 0, NO_SAMPLE)

    def count(
        self,
        run: BatchRun,
        orders: list[np.ndarray],
        calls: list[int],
        samples: int,
    ) -> None:
        """Count the gradients of a run. Raises UserError for too many of a mini-batch."""
        held = run.positions(orders).reshape(len(run.lanes), run.batches, -1) >= 0
        self.sample_gradients[run.lanes] += held.sum(axis=2) @ np.array(calls, np.int64)
        for gradients in calls:
            if gradients > MOST_GRADIENTS:
                raise UserError(
                    f"a step takes {gradients} gradients of a mini-batch; [privacy] unit "
                    f"= 'sample' allows at most {MOST_GRADIENTS}"
                )
            self.noisy_batches[run.lanes, gradients] += 1


def draw_batches(
    samples: int, size: int, steps: int, seed: int, *key: int | str
) -> list[np.ndarray]:
    """Return Poisson mini-batches: each of a client's samples joins each of them
    independently with probability min(1, size/samples).

    Args:
        samples: how many the client has, at least one.
        size: the expected size of a mini-batch.
        steps: the number of mini-batches.
        seed, key: of the draws.

    Returns:
        Ascending positions among the samples, for each mini-batch.
    """
    rate = min(1.0, size / samples)
    random = randomness.generator(seed, "poisson", *key)
    return [np.flatnonzero(random.random(samples) < rate) for _ in range(steps)]


@dataclass
class StepNoise:
    """The noise on gradients of a chunk's lanes, keyed by client and gradient.

    Attributes:
        seed, phase, keys: key the noise, as in ``MiniBatches``.
        deviations: σ_i C of each lane.
    """

    seed: int
    phase: str
    keys: Sequence[tuple[int, int]]
    deviations: Sequence[float]

    def __post_init__(self) -> None:
        self._drawn = [0] * len(self.keys)

    def draw(self, lanes: Lanes, width: int) -> Tensor | None:
        """Return the noise on the next gradient of some lanes, float32 [a, width] on the
        CPU; None where no lane has any.
        """
        chosen = range(len(self.keys))[lanes] if isinstance(lanes, slice) else lanes
        places = [int(place) for place in chosen]
        noise = np.zeros((len(places), width), np.float32)
        for row, place in zip(noise, places, strict=True):
            number, deviation = self._drawn[place], self.deviations[place]
            self._drawn[place] = number + 1
            if deviation:
                key = "sample noise", self.phase, *self.keys[place], number
                random = randomness.generator(self.seed, *key)
                row[:] = deviation * random.standard_normal(width)
        has_noise = any(self.deviations[place] for place in places)
        return torch.from_numpy(noise) if has_noise else None


class PrivateSession(Session):
    """A session whose gradients are noisy sums over samples, divided by the expected
    size of a mini-batch.
    """

    def __init__(
        self, sums: Session, noise: StepNoise, expected: Sequence[int]
    ) -> None:
        """Begin with a session that computes the sums.

        expected: the expected size of a mini-batch of each lane.
        """
        super().__init__(sums.kernel, sums.work)
        self._sums, self._noise = sums, noise
        device = next(iter(sums.work.tensors.values())).device
        self._expected = torch.tensor(expected, dtype=torch.float32, device=device)

    def gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        self.calls += 1
        own = {name: variables[name] for name in self.work.variables}
        sums, losses = self._sums.gradients(lanes, batch, own)
        sizes = [total[0].numel() for total in sums.values()]
        noise = self._noise.draw(lanes, sum(sizes))
        parts: Sequence[Tensor | None] = [None] * len(sizes)
        if noise is not None:
            parts = mixing.move_to_device(noise, losses.device).split(sizes, dim=1)
        expected = self._expected[lanes]
        noisy = {}
        for (name, total), part in zip(sums.items(), parts, strict=True):
            if part is not None:
                total = total + part.view(total.shape)
            divisor = expected.view(-1, *[1] * (total.dim() - 1))
            noisy[name] = total / divisor
        return noisy, losses / expected[:, None]
