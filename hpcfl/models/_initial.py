"""The model that all begin with, from a file (``model.init``)."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from hpcfl.errors import UserError
from hpcfl.files import foreign
from hpcfl.files.atomic import Damaged

LIMIT = 1 << 32  # bytes of a file


def read(file: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises UserError."""
    try:
        return load(foreign.read_bytes(Path(file), LIMIT))
    except FileNotFoundError:
        raise UserError(f"model.init: there is no file {file}") from None
    except (Damaged, SafetensorError) as error:
        raise UserError(
            f"model.init = '{file}' is no safetensors file that can be read: {error}"
        ) from None


def put(given: dict[str, Tensor], module: nn.Module, file: str) -> None:
    """Let a module have the tensors ``given``, all of its own and no others.

    file: where they are from, for errors. Raises UserError.
    """
    own = module.state_dict()
    if missing := sorted(own.keys() - given.keys()):
        raise UserError(
            f"model.init = '{file}' has no tensor '{missing[0]}', which the model needs; it has "
            f"{', '.join(sorted(given)) or 'none'}"
        )
    if unknown := sorted(given.keys() - own.keys()):
        raise UserError(
            f"model.init = '{file}' has a tensor '{unknown[0]}', which the model has not; its are "
            f"{', '.join(sorted(own))}"
        )
    for name, tensor in own.items():
        if _form(given[name]) != _form(tensor):
            raise UserError(
                f"model.init = '{file}': '{name}' is {_form(given[name])}, the model's "
                f"{_form(tensor)}"
            )
    with torch.no_grad():
        module.load_state_dict(given)


def _form(tensor: Tensor) -> str:
    """Type and shape of a tensor, for people."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} [{', '.join(map(str, tensor.shape))}]"
