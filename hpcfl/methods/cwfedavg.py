"""cwFedAvg: FedAvg for each class; each client receives the class models mixed by its
class distribution.

Lee & Choi, "Class-wise federated averaging" (arXiv 2406.07800 v1; ICCV 2025);
``overlays/class_wise.py`` has the server's step. The class distribution π̂_i of a
client is the true one, π_i, or an estimate from the norms of the rows of its output
layer. The weight distribution regulariser (WDR) λ‖π_i − π̂_i(w)‖₂ makes these norms
follow the true one.

Differences of paper and code (methods-1.md §5, item 9): the code uses λ/2 for the
reported λ, as here with ``wdr_half``. π counts training samples only, and norms exclude
the bias. A class without participants is left out of the mix; the code divides 0/0. The
code does not run with partial participation; here the formulas apply to the cohort.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from hpcfl.methods.base import Layers, search
from hpcfl.methods.fedavg import FedAvg
from hpcfl.methods.overlays.class_wise import ClassWise


class CwFedAvg(FedAvg):
    """State and traffic of cwFedAvg.

    Server: ``model`` [P], FedAvg's mean, and the state of ``ClassWise``. Client: none.
    Down P, up P (and K with the true π).
    """

    family = "mixed on the server"
    reference = "Lee & Choi, ICCV 2025"
    short = {"layers": "all", "wdr": 1.0}
    readers = {"distribution": {"wdr": ("wdr", "wdr_half")}}
    aggregation: Literal["average", "class-wise"] = Field(
        "class-wise", description="average is FedAvg"
    )
    # TOML reads `--set method.distribution=true` as a boolean instead of the word.
    distribution: Annotated[
        Literal["true", "norm", "wdr"],
        BeforeValidator(lambda v: "true" if v is True else v),
    ] = Field(
        "wdr", description="π̂: true shares of the classes, or norms without or with WDR"
    )
    layers: Layers = Field(
        "output", description="layers averaged by class: all, output, or the upper n"
    )
    wdr: float = Field(
        10.0,
        ge=0,
        description="strength λ of the regulariser as in the paper (10 CIFAR-10, 1000 CIFAR-100)",
        json_schema_extra=search(
            [1.0, 10.0, 100.0, 1000.0], "between the papers' 10 and 1000, and a tenth"
        ),
    )
    wdr_half: bool = Field(
        True, description="use λ/2, as the reference code does for the reported λ"
    )

    def make_class_wise(self) -> ClassWise:
        """Return the class-wise aggregation with the method's keys."""
        strength = self.wdr / 2 if self.wdr_half else self.wdr
        return ClassWise(self.distribution, self.layers, strength)


plugin = CwFedAvg
