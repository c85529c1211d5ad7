"""The initial model of all clients from a file (``model.init``)."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording
from hpcfl.files.atomic import Damaged

LIMIT = 1 << 32  # largest file in bytes


def read(file: str, module: nn.Module) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file by name; they must be finite and those of
    the module.

    Raises UserError.
    """
    try:
        given = load(untrusted_files.read_bytes(Path(file), LIMIT))
    except FileNotFoundError:
        raise UserError(f"model.init: there is no file {file}") from None
    except (Damaged, SafetensorError) as error:
        raise UserError(
            f"model.init = '{file}' is no safetensors file that can be read: {error}"
        ) from None
    own = module.state_dict()
    if missing := sorted(own.keys() - given.keys()):
        raise UserError(
            f"model.init = '{file}' has no tensor '{missing[0]}', which the model needs; it has "
            f"{wording.list_names(sorted(given)) or 'none'}"
        )
    if unknown := sorted(given.keys() - own.keys()):
        raise UserError(
            f"model.init = '{file}' has a tensor '{wording.shorten(unknown[0])}', which "
            f"the model has not; its are {wording.list_names(sorted(own))}"
        )
    for name, tensor in own.items():
        if form(given[name]) != form(tensor):
            raise UserError(
                f"model.init = '{file}': '{name}' is {form(given[name])}, the model's "
                f"{form(tensor)}"
            )
        place = untrusted_files.describe_nonfinite(given[name].float().numpy())
        if place:
            raise UserError(
                f"model.init = '{file}': '{name}'{place}; it must be finite"
            )
    return given


def form(tensor: Tensor) -> str:
    """Format the type and shape of a tensor."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} [{', '.join(map(str, tensor.shape))}]"
