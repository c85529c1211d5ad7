"""DiversiFed's practical partition: groups of clients with dominant classes; no sample
goes to two clients.

Wu et al., "The Diversity Bonus", Table III (protocols.md D6). Classes fall into as many
neighbouring blocks as there are groups. A client draws the dominant share of its
samples uniformly from its group's block and the rest uniformly from all other classes'
samples.
"""

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions._fixed import FixedScheme
from hpcfl.errors import UserError
from hpcfl.rows import randomness


class Grouped(FixedScheme):
    exclusive = True
    by_number = True
    scheme: str = "grouped"
    groups: list[PositiveInt] = Field(
        [6, 6, 8], description="clients of each group, in index order"
    )
    dominant: float = Field(
        0.8,
        ge=0,
        le=1,
        description="share of a client's samples from its group's classes",
    )

    def deal(
        self, part: str, pool: np.ndarray, labels: np.ndarray, classes: int, each: int
    ) -> list[np.ndarray]:
        if sum(self.groups) != self.clients or len(self.groups) > classes:
            raise UserError(
                f"partition.groups = {self.groups}: must sum to "
                f"partition.clients = {self.clients}, at most as many as the {classes} classes"
            )
        blocks = np.array_split(np.arange(classes), len(self.groups))
        group_of = np.repeat(np.arange(len(self.groups)), self.groups)
        dominant = round(self.dominant * each)
        # Positions of the pool that are not handed out yet. With replacement, once too
        # few are left, all may be drawn again.
        left = np.ones(len(pool), bool)
        drawn = []
        for client, group in enumerate(group_of):
            generator = randomness.generator(self.seed, "samples", part, client)
            inside = np.isin(labels, blocks[group])
            from_group = self._positions(inside, left, dominant, generator, client)
            from_others = self._positions(
                ~inside, left, each - dominant, generator, client
            )
            chosen = np.concatenate([from_group, from_others])
            left[chosen] = False
            drawn.append(pool[chosen])
        return drawn

    def _positions(
        self,
        wanted: np.ndarray,
        left: np.ndarray,
        count: int,
        generator: np.random.Generator,
        client: int,
    ) -> np.ndarray:
        """Draw ``count`` positions of the pool where ``wanted``, of those that are
        ``left`` if they suffice.
        """
        unused = np.flatnonzero(wanted & left)
        enough = len(unused) >= count or not self.replacement
        return self.pick(
            unused if enough else np.flatnonzero(wanted),
            count,
            generator,
            client=client,
        )


plugin = Grouped
