"""Adapters: trained parts of a model whose frozen base is the same for all clients
(``[adapter]``, adapters.md §3).

``kinds.py`` inserts an adapter, and ``base.py`` reads the base from files. The engine
receives both as a ``ModelAdapter`` and imports neither. Frozen parameters are constants
of the experiment (``rows/constants.py``) and not part of a row, so layouts, messages,
means, checkpoints and methods need no code for them.
"""

from functools import partial

from hpcfl.experiment.sections import Adapter
from hpcfl.simulation.prepared_model import ModelAdapter


def make_adapter(adapter: Adapter) -> ModelAdapter | None:
    """Return the adapter of an experiment for the engine; None without one.

    The modules of adapters are imported only if an experiment uses them.
    """
    if not adapter.is_used:
        return None
    from hpcfl.adapters import base, kinds

    insert = partial(kinds.adapt, adapter=adapter)
    if adapter.base is None:
        return ModelAdapter(insert)
    read = partial(base.read, adapter)
    if adapter.init is None:
        return ModelAdapter(insert, read)
    from hpcfl.adapters import peft

    start = peft.Start(adapter.init)
    return ModelAdapter(
        lambda module: start.fill(insert(module)),
        lambda module: start.add_tensors(*read(module)),
    )
