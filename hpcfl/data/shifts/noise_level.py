"""Ever more noise from client to client: client i of M has normal noise of standard
deviation noise·i/(M − 1) on values in [0, 1] (heterogeneity.md H3).

Li et al., "Federated learning on non-IID data silos: an experimental study", ICDE 2022,
with noise = 0.1 and ten clients. Their code takes it for the standard deviation, as
here, though its README says variance, and draws it anew at every access; here it is
drawn once.
"""

from functools import partial

from pydantic import Field

from hpcfl.data.shifts._corruptions import apply
from hpcfl.data.shifts._pixels import on_pixels
from hpcfl.data.shifts.base import Concept, Facts, Shift


class NoiseLevel(Shift):
    kind: str = "noise-level"
    noise: float = Field(
        0.1, ge=0, le=100, description="standard deviation of the last client's noise"
    )

    untouched = "noise 0"

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_values(self.kind)
        return [self._of_client(client, facts) for client in range(facts.clients)]

    def _of_client(self, client: int, facts: Facts) -> Concept:
        std = self.noise * client / max(1, facts.clients - 1)
        name = f"noise {std:.6g}"
        if not std:
            return Concept(self.untouched)
        add = partial(apply, "gaussian-noise", std, facts.generator)
        return Concept(name, on_pixels(add, facts))


plugin = NoiseLevel
