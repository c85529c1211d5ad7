"""hpcfl: personalised federated learning simulated on HPC clusters."""

import os
from typing import Any

# Without it the bits of a client's products in MKL depend on where its matrices happen to lie in memory, and
# so on which other clients its rank has. MKL reads it at its first product, which comes after this import.
# It costs no time that can be measured.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

__version__ = "0.1.0"
__all__ = ["load", "run"]


def __getattr__(name: str) -> Any:
    """``hpcfl.run`` and ``hpcfl.load``, imported when first used: MPI has to be initialised before
    anything heavy."""
    if name in __all__:
        from hpcfl import api

        return getattr(api, name)
    raise AttributeError(f"module 'hpcfl' has no attribute '{name}'")
