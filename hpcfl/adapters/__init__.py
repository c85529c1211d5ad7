"""Adapters: what of a model is trained, above one frozen base of all clients
(``[adapter]``, adapters.md §3).

An adapter only inserts what it needs and says by ``requires_grad_`` what of all is trained,
as a user's own module may do, whose choice it replaces. What is frozen is then a constant
of the experiment (``rows/constants.py``): it lies in no row, so that layouts, messages,
means, checkpoints and methods know nothing of it.
"""

from collections.abc import Callable

from torch import nn

from hpcfl.adapters import bottleneck, lora, prompt
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Adapter
from hpcfl.rows import patterns
from hpcfl.rows.layout import of_parameters


def adapt(module: nn.Module, adapter: Adapter) -> nn.Module:
    """The same module, of which the adapter and the head are trained and nothing else.

    Raises UserError where it has nothing that the adapter could be about.
    """
    if adapter.kind == "none":
        return module
    trained = INSERT[adapter.kind](module, adapter)
    known = [name for name, _ in module.named_parameters()]
    head = of_parameters(module).head_name
    trained |= {name for name in known if name.split(".")[0] == head}
    trained |= set(patterns.matching(adapter.train, known, "adapter.train"))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)
    return module


def _nothing_more(module: nn.Module, adapter: Adapter) -> set[str]:
    """No names: the head alone is trained."""
    return set()


def _biases(module: nn.Module, adapter: Adapter) -> set[str]:
    """The names of the biases, and of layer norm's scales where these are trained.

    Raises UserError where there is none.
    """
    names = {
        name
        for name, _ in module.named_parameters()
        if "bias" in name.rpartition(".")[2]
    }
    if adapter.norms:
        for path, layer in module.named_modules():
            if isinstance(layer, nn.LayerNorm):
                names |= {f"{path}.{name}" for name, _ in layer.named_parameters()}
    if not names:
        raise UserError("adapter.kind = 'bias': the model has no biases")
    return names


# by ``adapter.kind``: what changes a model and says what of it is trained
INSERT: dict[str, Callable[[nn.Module, Adapter], set[str]]] = {
    "lora": lora.insert,
    "bottleneck": bottleneck.insert,
    "prompt": prompt.insert,
    "head": _nothing_more,
    "bias": _biases,
}
