"""The base of an adapter from files (``adapter.base``, adapters.md §3).

The files are safetensors files, which contain no code. The library first checks that
length, types and offsets in the header fit the file. Then it maps the numbers, so that
errors are found before memory is allocated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from hpcfl.adapters import names
from hpcfl.adapters.kinds import adapt
from hpcfl.adapters.names import Piece
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Adapter
from hpcfl.files import untrusted_files, wording
from hpcfl.models import initial
from hpcfl.rows.declared import describe_form
from hpcfl.rows.layout import lay_out_parameters

KEY = "adapter.base"
NAMED = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Base(NamedTuple):
    """Tensors of a base from files.

    Attributes:
        tensors: Tensors by the model's names, in the model's types and shapes.
        notes: Notes about parameters and tensors without a counterpart.
    """

    tensors: dict[str, Tensor]
    notes: list[str]


def read(adapter: Adapter, module: nn.Module) -> Base:
    """Read the tensors of the base for a model, and insert the adapter.

    Args:
        adapter: The section ``[adapter]``.
        module: One client's module, without an adapter.

    Raises:
        UserError: A file is unreadable, a frozen parameter has no tensor, or a tensor
            has another shape, a type of higher precision, or a value that is not
            finite.
    """
    own: dict[str, Tensor] = module.state_dict(keep_vars=True)
    file = f"{KEY} = '{adapter.base}'"
    with _open_files(str(adapter.base)) as files:
        found = names.find_all_pieces(files, adapter.names)
        there = {name: found[name] for name in own if name in found}
        used = {piece.tensor for pieces in there.values() for piece in pieces}
        unused = wording.list_names([tensor for tensor in files if tensor not in used])
        # A file has one tensor for tied parameters.
        known = {id(own[name]) for name in there}
        drawn = [name for name in own if id(own[name]) not in known]
        trained = _list_trained(module, adapter)
        if missing := wording.list_names(
            [name for name in drawn if name not in trained]
        ):
            aside = f"; not used: {unused}" if unused else ""
            raise UserError(
                f"{file} has no tensor for {missing}{aside}; map tensors to parameters by "
                f"{names.KEY}, or train the parameters by adapter.train"
            )
        tensors, unfit = {}, []
        for name, pieces in there.items():
            made = _make_parameter(pieces, files, own[name])
            if made is None:
                unfit.append(_describe_difference(name, pieces, files, own[name]))
            else:
                parts = " and ".join(
                    f"'{wording.shorten(piece.tensor)}'" for piece in pieces
                )
                where = f"{file}: {parts}: the model's '{name}'"
                initial.refuse_nonfinite(where, made)
                tensors[name] = made
    if unfit:
        raise UserError(f"{file}: {wording.list_first(unfit)}")
    notes = []
    if drawn:
        notes.append(
            f"{KEY}: initialised randomly, because the file lacks them: {wording.list_names(drawn)}"
        )
    if unused:
        notes.append(f"{KEY}: unused tensors of the file: {unused}")
    return Base(tensors, notes)


def describe(base: str) -> list[str]:
    """Return a line for each file of a base: its SHA-256, tensors, parameters and
    types.

    Raises UserError for an unreadable file.
    """
    lines = []
    for path in _find_paths(base):
        with _open_files(str(path)) as files:
            slices = [file.get_slice(name) for name, file in files.items()]
            numbers = sum(math.prod(part.get_shape()) for part in slices)
            types = sorted({part.get_dtype() for part in slices})
        kinds = " and ".join(NAMED.get(kind, kind) for kind in types)
        with (
            untrusted_files.refuse_unreadable(path),
            untrusted_files.open_user_file(path) as file,
        ):
            digest = untrusted_files.compute_sha256(file)
        lines.append(
            f"{path}: SHA-256 {digest}, {len(slices):,} tensors, {numbers:,} parameters, "
            f"{kinds or 'none'}"
        )
    return lines


def _list_trained(module: nn.Module, adapter: Adapter) -> set[str]:
    """Return the names of the adapter's trained parameters; without an adapter, the
    names of the output layer's parameters.
    """
    if adapter.kind == "none":
        head = lay_out_parameters(module).head_name
        return {name for name in module.state_dict() if name.split(".")[0] == head}
    return {
        name
        for name, parameter in adapt(module, adapter).named_parameters()
        if parameter.requires_grad
    }


def _make_parameter(
    pieces: Sequence[Piece], files: Mapping[str, Any], own: Tensor
) -> Tensor | None:
    """Return a parameter in the model's type and shape, composed of its pieces in the
    files.

    The result is None if the pieces have another shape, or if a conversion would lose
    digits.
    """
    parts = []
    try:
        for piece in pieces:
            tensor = files[piece.tensor].get_tensor(piece.tensor)
            parts.append(piece.cut(tensor, own.shape))
        made = parts[0] if len(parts) == 1 else torch.cat(parts)
        # torch raises an error for two kinds of 8-bit floats.
        exact = torch.promote_types(made.dtype, own.dtype) == own.dtype
    except (SafetensorError, RuntimeError, IndexError):
        return None
    floating = made.is_floating_point() == own.is_floating_point()
    if made.shape != own.shape or not (floating and exact):
        return None
    return torch.empty_like(own, requires_grad=False).copy_(made)


def _describe_difference(
    name: str, pieces: Sequence[Piece], files: Mapping[str, Any], own: Tensor
) -> str:
    """Return a description of a parameter and its pieces in the files."""
    there = []
    for piece in pieces:
        part = files[piece.tensor].get_slice(piece.tensor)
        kind = NAMED.get(part.get_dtype(), part.get_dtype())
        change = f"{piece.change} " if piece.change else ""
        there.append(
            f"{change}'{wording.shorten(piece.tensor)}' is {kind} {part.get_shape()}"
        )
    return f"{' and '.join(there)} and the model's '{name}' {describe_form(own)}"


def _find_paths(base: str) -> list[Path]:
    """Return the files of a base. Raises UserError if there are none."""
    path = Path(base)
    paths = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not paths:
        raise UserError(f"{KEY} = '{base}': the folder has no *.safetensors")
    return paths


@contextmanager
def _open_files(base: str) -> Iterator[dict[str, Any]]:
    """Open the files of a base and yield the open file of each tensor, by the tensors'
    names.

    Raises UserError for an unreadable file, or for two tensors with the same name.
    """
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for path in _find_paths(base):
            with untrusted_files.refuse_unreadable(f"{KEY}: {path}", "safetensors"):
                file = stack.enter_context(initial.opened(path))
            tensors = file.keys()
            for name in tensors:
                if name in files:
                    raise UserError(
                        f"{KEY} = '{base}' has '{wording.shorten(name)}' in two files"
                    )
                files[name] = file
        yield files
