"""hpcfl: personalised federated learning simulated on HPC clusters."""

import os
from typing import Any

# Without this setting, the bits of a matrix product in MKL depend on the memory addresses
# of its matrices, so a client's results would depend on the other clients of its rank.
# MKL reads the variable at its first product, which comes after this import. The setting
# costs no measurable time.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

__version__ = "0.3.0"
__all__ = ["Interrupted", "RunFailure", "UserError", "load", "load_all", "run"]


def __getattr__(name: str) -> Any:
    """Import public names on first use, because MPI must be initialised before any heavy
    import.
    """
    if name in ("load", "load_all"):
        from hpcfl.trained import loading

        return getattr(loading, name)
    if name in __all__:
        from hpcfl import api

        return getattr(api, name)
    raise AttributeError(f"module 'hpcfl' has no attribute '{name}'")
