"""Adapters: what of a model is trained, above one frozen base of all clients
(``[adapter]``, adapters.md §3).

An adapter only inserts what it needs and says ``requires_grad_(False)`` of the rest, as a
user's own module may do. What is frozen is then a constant of the experiment
(``rows/constants.py``): it lies in no row, so that layouts, messages, means, checkpoints
and methods know nothing of it.
"""

from collections.abc import Callable

from torch import nn

from hpcfl.adapters import bottleneck, lora, prompt
from hpcfl.errors import UserError
from hpcfl.experiment.plugins import few
from hpcfl.experiment.sections import Adapter
from hpcfl.rows import patterns
from hpcfl.rows.layout import of_parameters

# What gets a correction where ``adapter.targets`` names nothing: queries and values, or
# one layer for queries, keys and values, by the names that models have for them.
QUERIES_AND_VALUES = (
    "q",
    "v",
    "qkv",
    "query",
    "value",
    "q_proj",
    "v_proj",
    "q_lin",
    "v_lin",
    "c_attn",
)


def adapt(module: nn.Module, adapter: Adapter) -> nn.Module:
    """The same module, of which the adapter and the head are trained and nothing else.

    Raises UserError where it has nothing that the adapter could be about.
    """
    if adapter.kind == "none":
        return module
    trained = SORTS[adapter.kind](module, adapter)
    known = [name for name, _ in module.named_parameters()]
    head = of_parameters(module).head_name
    trained |= {name for name in known if name.split(".")[0] == head}
    trained |= set(patterns.matching(adapter.train, known, "adapter.train"))
    for name, parameter in module.named_parameters():
        if name not in trained:
            parameter.requires_grad_(False)
    return module


def _low_rank(module: nn.Module, adapter: Adapter) -> set[str]:
    """Insert corrections of low rank; the names of what is trained of them."""
    for name in _targets(module, adapter):
        lora.insert(module.get_submodule(name), name, adapter)
    names = set[str]()
    for name in lora.layers(module):
        names |= {f"{name}.A", f"{name}.B"} if adapter.train_a else {f"{name}.B"}
    return names


def _targets(module: nn.Module, adapter: Adapter) -> list[str]:
    """The names of the layers that get a correction. Raises UserError where there is
    none.
    """
    head = of_parameters(module).head_name
    possible = []
    for name, layer in module.named_modules():
        around = module.get_submodule(name.rpartition(".")[0])
        # In evaluation mode torch's block reads the weights of its layers, not the layers.
        unasked = isinstance(around, nn.TransformerEncoderLayer)
        in_head = name.split(".")[0] == head
        if type(layer) in lora.ADAPTED and not unasked and not in_head:
            possible.append(name)
    if adapter.targets:
        return patterns.matching(adapter.targets, possible, "adapter.targets")
    found = [name for name in possible if name.rpartition(".")[2] in QUERIES_AND_VALUES]
    if not found:
        raise UserError(
            "adapter.targets: the model has no layers that are named as queries and values "
            f"are; name the layers to adapt{few('', possible)}"
        )
    return found


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
SORTS: dict[str, Callable[[nn.Module, Adapter], set[str]]] = {
    "lora": _low_rank,
    "bottleneck": bottleneck.insert,
    "prompt": prompt.insert,
    "head": _nothing_more,
    "bias": _biases,
}
