"""The initial model of all clients from a file (``model.init``)."""

from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording
from hpcfl.rows.declared import describe_form


def read(file: str, module: nn.Module) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file for a module, by name.

    Args:
        file: The path of the file.
        module: The module, whose tensors the file must have.

    Raises:
        UserError: The file is unreadable, its tensors differ from the module's in
            names, types or shapes, or a tensor is not finite.
    """
    given = load(f"model.init = '{file}'", Path(file))
    own = module.state_dict()
    if missing := sorted(own.keys() - given.keys()):
        raise UserError(
            f"model.init = '{file}' has no tensor '{missing[0]}', which the model needs; it has "
            f"{wording.list_names(sorted(given)) or 'none'}"
        )
    if unknown := sorted(given.keys() - own.keys()):
        raise UserError(
            f"model.init = '{file}' has a tensor '{wording.shorten(unknown[0])}', which "
            f"the model does not have; it has {wording.list_names(sorted(own))}"
        )
    for name, tensor in own.items():
        if describe_form(given[name]) != describe_form(tensor):
            raise UserError(
                f"model.init = '{file}': '{name}' is {describe_form(given[name])}, the model's "
                f"{describe_form(tensor)}"
            )
    return given


def load(where: str, path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file by name.

    Args:
        where: The key and its value, for error messages.
        path: The path of the file.

    Raises:
        UserError: The file is unreadable, or a tensor is not finite.
    """
    tensors = {}
    with untrusted_files.refuse_unreadable(where, "safetensors"), opened(path) as file:
        for name in file.keys():  # noqa: SIM118
            tensors[name] = file.get_tensor(name)
            refuse_nonfinite(f"{where}: '{wording.shorten(name)}'", tensors[name])
    return tensors


def opened(path: Path) -> Any:
    """Open a safetensors file, as a context. Raises OSError, SafetensorError."""
    # This refuses a pipe, which would block.
    untrusted_files.open_user_file(path).close()
    return safe_open(path, framework="pt")


def refuse_nonfinite(what: str, tensor: Tensor) -> None:
    """Raise UserError for the first not-a-number or infinity in a tensor."""
    if place := untrusted_files.describe_nonfinite(tensor.float().numpy()):
        raise UserError(f"{what}{place}; it must be finite")
