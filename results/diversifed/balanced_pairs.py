"""A partition with as many clients for each class: ``scheme =
"balanced_pairs:BalancedPairs"``, with this folder on ``PYTHONPATH``.

DiversiFed's Table I does not say how the two classes of a client are drawn. The scheme
``pathological-pairs`` draws them freely, as Fling does (``pathological_sampling`` in
``fling/utils/data_utils/sampling.py`` of kxzxvbk/Fling at f6c6f1e). Of 40 clients 3 to
15 then hold a class. Here every class has exactly 8.
"""

import numpy as np

from hpcfl.data.partitions.fixed import FixedScheme
from hpcfl.errors import UserError
from hpcfl.rows import randomness

PER_CLIENT = 2


class BalancedPairs(FixedScheme):
    """Two classes with equal numbers of samples for each client; clients may share
    samples.
    """

    scheme: str = "balanced_pairs:BalancedPairs"

    def deal(
        self,
        part: str,
        pool: np.ndarray,
        labels: np.ndarray,
        classes: int,
        each: int,
    ) -> list[np.ndarray]:
        pairs = self.draw_pairs(classes)
        by_class = [pool[labels == k] for k in range(classes)]
        drawn = []
        for client, pair in enumerate(pairs.tolist()):
            generator = randomness.generator(self.seed, "samples", part, client)
            picked = []
            for k in pair:
                place = {"client": client, "class": k}
                half = self.pick(by_class[k], each // PER_CLIENT, generator, **place)
                picked.append(half)
            drawn.append(np.concatenate(picked))
        return drawn

    def draw_pairs(self, classes: int) -> np.ndarray:
        """Draw two different classes for each client, int64 [clients, 2], uniformly
        among the draws that give every class as many clients.

        Raises UserError where 2 · ``clients`` is no multiple of ``classes``.
        """
        places = PER_CLIENT * self.clients
        if classes < PER_CLIENT or places % classes:
            raise UserError(
                f"partition.clients = {self.clients}: {places} places cannot hold each of "
                f"{classes} classes equally often; set partition.clients to a multiple of "
                f"{classes}"
            )
        generator = randomness.generator(self.seed, "shares")
        every_place = np.repeat(np.arange(classes), places // classes)
        while True:
            pairs = generator.permutation(every_place).reshape(self.clients, -1)
            if (pairs[:, 0] != pairs[:, 1]).all():
                return pairs
