"""Adapters: trained parts of a model above one frozen base of all clients
(``[adapter]``, adapters.md §3).

``kinds.py`` inserts an adapter, and ``base.py`` reads the base from files. The engine
receives both as a ``ModelAdapter`` and imports neither. Frozen parameters are constants
of the experiment (``rows/constants.py``) and lie in no row. Layouts, messages, means,
checkpoints and methods need no code for them.
"""

from functools import partial

from hpcfl.experiment.sections import Adapter
from hpcfl.simulation.prepared_model import ModelAdapter


def make_adapter(adapter: Adapter) -> ModelAdapter | None:
    """Return the adapter of an experiment for the engine; None without one.

    The modules of adapters are imported where an experiment asks for them.
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
