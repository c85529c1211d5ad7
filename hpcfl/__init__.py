"""hpcfl: personalised federated learning simulated on HPC clusters."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["load", "run"]


def __getattr__(name: str) -> Any:
    """``hpcfl.run`` and ``hpcfl.load``, imported when first used: MPI has to be initialised before anything heavy."""
    if name in __all__:
        from hpcfl import api

        return getattr(api, name)
    raise AttributeError(f"module 'hpcfl' has no attribute '{name}'")
