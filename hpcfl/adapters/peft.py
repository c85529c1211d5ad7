"""Low-rank corrections as files of the library PEFT, which other libraries also read.

Names and shapes are those of PEFT 0.21 (``utils/save_and_load.py``, ``utils/other.py``,
``tuners/lora/layer.py``). A model's folder contains its configuration and the tensors,
with names that begin with ``base_model.model.``:

* a linear layer has ``lora_A.weight`` [r, in] and ``lora_B.weight`` [out, r];
* an embedding has ``lora_embedding_A`` [r, n] and ``lora_embedding_B`` [d, r]. PEFT has
  no padding without a correction, so the padding's column of A is zero;
* other trained layers, such as the head, are saved completely (``modules_to_save``).
  PEFT finds them by the end of their names. In layers with corrections, and if another
  name has the same end, parameters are saved separately by their names. PEFT loads
  these into the base.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hpcfl.adapters import lora
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Adapter
from hpcfl.files import wording
from hpcfl.models import initial

BASE = "base_model.model."  # prefix of the names of all tensors
TENSORS = "adapter_model.safetensors"
LEAVES = {
    ".lora_A.weight": ".A",
    ".lora_B.weight": ".B",
    ".lora_embedding_A": ".A",
    ".lora_embedding_B": ".B",
}


@dataclass(frozen=True)
class Corrections:
    """Trained parts of a model with low-rank corrections.

    Attributes:
        targets: Names of the layers with a correction.
        alike: Names of further layers that PEFT would treat as targets, because their
            names have the same end.
        saved: Names of the layers that are saved completely.
        tensors: Copies of the tensors, by PEFT's names.
    """

    targets: list[str]
    alike: list[str]
    saved: list[str]
    tensors: dict[str, Tensor]


@torch.no_grad()
def find_corrections(module: nn.Module) -> Corrections | None:
    """Return the trained parts of a model; None if no layer has a correction.

    All frozen numbers of the model must be parameters.
    """
    layers = lora.find_layers(module)
    if not layers:
        return None
    targets = list(layers)
    names = [name for name, _ in module.named_modules()]
    alike = [
        name for name in names if name not in targets and _ends_with(name, targets)
    ]
    holders = [name for name, layer in module.named_modules() if _list_further(layer)]
    whole = [name for name in holders if _is_found_by_name(name, names, targets)]
    saved = [name for name in whole if not _is_inside(name, whole)]
    tensors = dict[str, Tensor]()
    for name, layer in layers.items():
        tensors |= _name_factors(f"{BASE}{name}", layer)
    for name in saved:
        for key, tensor in module.get_submodule(name).state_dict().items():
            tensors[f"{BASE}{name}.{key}"] = tensor
    for name in holders:
        if name not in whole:
            tensors |= _list_parameters(name, module.get_submodule(name))
    copies = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return Corrections(targets, alike, saved, copies)


def make_files(known: Corrections, adapter: Adapter) -> dict[str, bytes]:
    """Return the contents of a model's files by name."""
    config = json.dumps(_make_config(known, adapter), indent=1)
    return {
        TENSORS: save(known.tensors, {"format": "pt"}),
        "adapter_config.json": config.encode(),
    }


class Start:
    """Initial corrections of all clients, from a folder in PEFT's format."""

    def __init__(self, folder: str) -> None:
        """Read the file. Raises UserError for an unreadable file."""
        self.key = f"adapter.init = '{folder}'"
        tensors = initial.load(f"{self.key}: {TENSORS}", Path(folder) / TENSORS)
        self.tensors = {_strip_prefix(name): tensor for name, tensor in tensors.items()}

    def fill(self, module: nn.Module) -> nn.Module:
        """Load the tensors into a model with corrections and return it. Raises
        UserError if tensors of file and model have different names or shapes.
        """
        own: dict[str, Tensor] = module.state_dict()
        corrections = {
            f"{name}.{leaf}" for name in lora.find_layers(module) for leaf in "AB"
        }
        missing = sorted(corrections - set(self.tensors))
        unfit = [
            name
            for name, tensor in self.tensors.items()
            if name not in own or own[name].shape != tensor.shape
        ]
        if missing or unfit:
            names = wording.list_names([*missing, *unfit])
            raise UserError(
                f"{self.key}: the model and the file differ in {names}; layers and "
                "shapes must be the same"
            )
        module.load_state_dict(self.tensors, strict=False)
        return module

    def add_tensors(
        self, found: dict[str, Tensor], notes: list[str]
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Return the base's tensors ``found`` together with those of the adapter, for
        the run's digest, and the base's ``notes``.
        """
        of_file = {f"adapter.{name}": tensor for name, tensor in self.tensors.items()}
        return found | of_file, notes


def _strip_prefix(name: str) -> str:
    """Return the model's name of a tensor from its name in PEFT's file."""
    own = name.removeprefix(BASE).replace(".base_layer.", ".")
    for end, leaf in LEAVES.items():
        if own.endswith(end):
            own = own.removesuffix(end) + leaf
    return own


def _make_config(known: Corrections, adapter: Adapter) -> dict[str, Any]:
    """Return the contents of ``adapter_config.json``, by the keys of PEFT's
    ``LoraConfig``.
    """
    # Readers in other languages expect an integer α.
    whole = adapter.alpha.is_integer()
    biases = [name for name in known.tensors if name.endswith(".base_layer.bias")]
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if whole else adapter.alpha,
        "use_rslora": adapter.scale == "alpha/sqrt(r)",
        "lora_dropout": adapter.dropout,
        "target_modules": known.targets,
        "exclude_modules": known.alike or None,
        "modules_to_save": known.saved or None,
        "bias": "lora_only" if biases else "none",
        "fan_in_fan_out": False,
    }


def _name_factors(name: str, layer: lora.LowRank) -> dict[str, Tensor]:
    """Return A and B of the layer with this name by PEFT's names."""
    if isinstance(layer, lora.LowRankLinear):
        return {f"{name}.lora_A.weight": layer.A, f"{name}.lora_B.weight": layer.B}
    assert isinstance(layer, lora.LowRankEmbedding)
    down = layer.A.clone()
    if layer.padding_idx is not None:
        down[:, layer.padding_idx] = 0
    return {f"{name}.lora_embedding_A": down, f"{name}.lora_embedding_B": layer.B}


def _list_further(layer: nn.Module) -> dict[str, Tensor]:
    """Return a layer's direct trained parameters except its correction, by name."""
    apart = ("A", "B") if isinstance(layer, lora.LowRank) else ()
    return {
        name: parameter
        for name, parameter in layer.named_parameters(recurse=False)
        if parameter.requires_grad and name not in apart
    }


def _list_parameters(name: str, layer: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters and the statistics of one layer, by PEFT's names."""
    prefix = f"{BASE}{name}." if name else BASE
    if isinstance(layer, lora.LowRank):
        prefix = f"{prefix}base_layer."
    known = _list_further(layer) | dict(layer.named_buffers(recurse=False))
    return {f"{prefix}{key}": tensor for key, tensor in known.items()}


def _is_found_by_name(name: str, names: Sequence[str], targets: Sequence[str]) -> bool:
    """Return whether PEFT finds only this layer by its name, and the layer neither is
    nor contains a target.
    """
    found = [other for other in names if other.endswith(name)]
    holds = any(_is_inside(target, [name]) for target in targets)
    return found == [name] and name not in targets and not holds


def _ends_with(name: str, endings: Sequence[str]) -> bool:
    """Return whether the last parts of a name are one of the ``endings``."""
    return any(name.endswith(f".{ending}") for ending in endings)


def _is_inside(name: str, layers: Sequence[str]) -> bool:
    """Return whether a name is inside one of the layers."""
    return any(name.startswith(f"{layer}.") for layer in layers)
