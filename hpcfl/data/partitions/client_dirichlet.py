"""DiversiFed's Dirichlet partition: each client draws its own class distribution;
clients may share samples.

Wu et al., "The Diversity Bonus" (protocols.md D4). The paper prints q ~ Dir(αp) with a
prior p. With p = 1/K a constant classifier would beat its own baseline, so here q ~
Dir(α·1), as in the public code.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from hpcfl.data.partitions._fixed import SharedScheme


class ClientDirichlet(SharedScheme):
    scheme: str = "client-dirichlet"
    beta: float = Field(
        0.1, gt=0, description="concentration α of a client's class distribution"
    )
    rounding: Literal["last-class", "largest-remainder"] = Field(
        "last-class",
        description="each class to the nearest and the rest to the last, as the public code; or unbiased",
    )

    def shares(self, classes: int, generator: np.random.Generator) -> np.ndarray:
        return generator.dirichlet(np.full(classes, self.beta))

    def counts(self, shares: np.ndarray, samples: int) -> np.ndarray:
        if self.rounding == "largest-remainder":
            return super().counts(shares, samples)
        upto = np.cumsum(np.floor(shares[:-1] * samples + 0.5))
        upto = np.minimum(upto, samples).astype(np.int64)
        return np.diff(upto, prepend=0, append=samples)


plugin = ClientDirichlet
