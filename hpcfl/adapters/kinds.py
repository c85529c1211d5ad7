"""Insertion of an adapter of any kind into a model.

An adapter only inserts its layers and selects the trained parameters by
``requires_grad_``, which overrides the selection of a user's module. The kinds "lora",
"bottleneck" and "prompt" are files of this folder, whose ``insert`` changes a model and
returns the names of the trained parameters.
"""

import importlib

from torch import nn

from hpcfl.errors import UserError
from hpcfl.experiment.sections import Adapter
from hpcfl.rows import layout
from hpcfl.rows.layout import lay_out_parameters


def adapt(module: nn.Module, adapter: Adapter) -> nn.Module:
    """Insert an adapter into a module, freeze all other parameters except the head's,
    and return the module.

    Raises UserError if the module has no layers for the adapter.
    """
    if adapter.kind == "none":
        return module
    trained = set[str]()  # kind "head": no parameters but the head's
    if adapter.kind == "bias":
        trained = _find_biases(module, adapter)
    elif adapter.kind != "head":
        file = importlib.import_module(f"{__package__}.{adapter.kind}")
        trained = file.insert(module, adapter)
    known = [name for name, _ in module.named_parameters()]
    head = lay_out_parameters(module).head_name
    trained |= {name for name in known if name.split(".")[0] == head}
    trained |= set(layout.match_names(adapter.train, known, "adapter.train"))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)
    return module


def find_called_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers below the output layer that forward passes call, by name."""
    head = lay_out_parameters(module).head_name
    found = {}
    for name, layer in module.named_modules():
        around = module.get_submodule(name.rpartition(".")[0])
        # In evaluation mode torch's block reads the weights of its layers directly.
        is_read = isinstance(around, nn.TransformerEncoderLayer)
        uncalled = is_read or isinstance(layer, nn.ModuleList | nn.ModuleDict)
        if name.split(".")[0] not in ("", head) and not uncalled:
            found[name] = layer
    return found


def _find_biases(module: nn.Module, adapter: Adapter) -> set[str]:
    """Return the names of the biases, with ``adapter.norms`` also of the parameters of
    layer norms.

    Raises UserError if there are none.
    """
    names = set[str]()
    for path, layer in module.named_modules():
        is_norm = adapter.norms and isinstance(layer, nn.LayerNorm)
        for name, _ in layer.named_parameters(recurse=False):
            if "bias" in name or is_norm:
                names.add(f"{path}.{name}" if path else name)
    if not names:
        raise UserError("adapter.kind = 'bias': the model has no biases")
    return names
