"""Sample-level privacy of local training: Poisson mini-batches, clipping and noise.

Gradients of samples are clipped, summed and noised. The specification is
``updates/updates.md``, U2. ``training.py`` uses ``PoissonBatches`` instead of its usual
mini-batches. ``updates/sample_level.py`` computes the privacy budget.
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
from hpcfl.clients.samples import pad_positions
from hpcfl.errors import UserError
from hpcfl.rows import mixing, randomness


@dataclass(frozen=True)
class SamplePrivacy:
    """Clip and noise of all local training.

    Attributes:
        clip: largest norm C of a sample's gradient; infinite without a clip.
        noise: noise multipliers σ_i of all clients, float64 [clients and newcomers];
            NaN before calibration.
        private_variables: names of variables that a loss may read.
    """

    clip: float
    noise: np.ndarray
    private_variables: frozenset[str]

    def without_noise(self) -> "SamplePrivacy":
        """Return the same clip without noise, for a trial that releases nothing."""
        return replace(self, noise=np.zeros_like(self.noise))

    def refuse(self, what: str) -> None:
        """Raise UserError for a part of a method that the guarantee does not cover.

        Args:
            what: name of that part in the message.
        """
        raise UserError(
            f"[privacy] unit = 'sample' does not cover {what}; choose a method that reads "
            "samples only through gradients of a loss, such as FedAvg, Ditto or MR-MTL"
        )

    def make_batches(self, **given: Any) -> "PoissonBatches":
        """Return the source of a chunk's mini-batches, from fields of ``MiniBatches``."""
        return PoissonBatches(privacy=self, **given)


@dataclass(kw_only=True)
class PoissonBatches(MiniBatches):
    """Poisson mini-batches of a chunk's lanes, with noise on sums of clipped gradients.

    All mini-batches are padded to the size of the largest one.

    Attributes:
        privacy: clip and noise.
    """

    privacy: SamplePrivacy

    def begin(self, work: Work) -> "PrivateSession":
        """Return a session that adds noise.

        Raises:
            ValueError: The noise is not calibrated.
        """
        privacy, deviations = self.privacy, []
        for client in self.clients:
            sigma = float(privacy.noise[client.id])
            if math.isnan(sigma):
                raise ValueError("the noise is not calibrated; run the preflight first")
            deviations.append(sigma * privacy.clip if sigma else 0.0)
        readable = {}
        for name, value in work.variables.items():
            if name in privacy.private_variables:
                readable[name] = value
        clipped = replace(work, variables=readable, clip=privacy.clip)
        noise = StepNoise(self.seed, self.phase, self.keys, deviations)
        expected = [min(self.size, len(client.pool)) for client in self.clients]
        return PrivateSession(super().begin(clipped), noise, expected)

    def draw(self, epoch: int) -> tuple[list[np.ndarray], int]:
        """Draw the samples of an epoch like ``MiniBatches.draw``, with −1 as padding."""
        batches = []
        for client, client_key in zip(self.clients, self.keys, strict=True):
            key = self.phase, *client_key, epoch
            steps = -(-client.length // self.size)
            drawn = draw_batches(len(client.pool), self.size, steps, self.seed, *key)
            ends = np.cumsum([len(batch) for batch in drawn])
            order = self.samples.vary(
                client.pool[np.concatenate(drawn)], self.seed, *key
            )
            batches.append(np.split(order, ends[:-1]))
        largest = max(len(batch) for drawn in batches for batch in drawn)
        # The width is a positive multiple of PIECE.
        width = PIECE * max(1, math.ceil(largest / PIECE))
        return [pad_positions(drawn, width).ravel() for drawn in batches], width

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at drawn positions. Padding has the class NO_SAMPLE."""
        x, y = super().take(index.clamp(min=0))
        return x, y.masked_fill(index < 0, NO_SAMPLE)

    def count(
        self,
        run: BatchRun,
        orders: list[np.ndarray],
        calls: list[int],
        samples: int,
    ) -> None:
        """Count the gradients of a run, with arguments as for ``MiniBatches.count``.

        Raises:
            UserError: A step takes more than MOST_GRADIENTS gradients of a mini-batch.
        """
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
    """Draw Poisson mini-batches of a client's samples.

    Each sample joins each mini-batch independently with probability min(1,
    size/samples).

    Args:
        samples: number of the client's samples, at least one.
        size: expected size of a mini-batch.
        steps: number of mini-batches.
        seed, key: keys of the draws.

    Returns:
        Ascending positions among the samples, for each mini-batch.
    """
    rate = min(1.0, size / samples)
    random = randomness.generator(seed, "poisson", *key)
    return [np.flatnonzero(random.random(samples) < rate) for _ in range(steps)]


@dataclass
class StepNoise:
    """Noise on gradients of a chunk's lanes, keyed by client and gradient.

    Attributes:
        seed, phase, keys: keys of the noise, as in ``MiniBatches``.
        deviations: standard deviation σ_i C of each lane's noise.
    """

    seed: int
    phase: str
    keys: Sequence[tuple[int, int]]
    deviations: Sequence[float]

    def __post_init__(self) -> None:
        self._drawn = [0] * len(self.keys)

    def draw(self, lanes: Lanes, width: int) -> Tensor | None:
        """Draw the noise on the next gradient of some lanes.

        Args:
            lanes: lanes whose gradient is taken.
            width: number of trained parameters.

        Returns:
            Noise, float32 [a, width] on the CPU; None if all deviations are zero.
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
    """A session with noisy sums of gradients, divided by the expected batch size."""

    def __init__(
        self, sums: Session, noise: StepNoise, expected: Sequence[int]
    ) -> None:
        """Begin a session.

        Args:
            sums: session that computes sums of clipped gradients.
            noise: noise on these sums.
            expected: expected size of a mini-batch of each lane.
        """
        super().__init__(sums.kernel, sums.work)
        self._sums, self._noise = sums, noise
        device = next(iter(sums.work.tensors.values())).device
        self._expected = torch.tensor(expected, dtype=torch.float32, device=device)

    def compute_gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        self.calls += 1
        own = {name: variables[name] for name in self.work.variables}
        sums, losses = self._sums.compute_gradients(lanes, batch, own)
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
