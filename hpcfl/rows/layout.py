"""Layout of flat rows: the columns of each parameter of a model.

Parameters are in registration order. The body is therefore a prefix of the row, and the
head and "the upper p layers" are suffixes. A method that treats layers differently
slices columns.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

import torch
from torch import Tensor, nn

from hpcfl.errors import UserError, suggest
from hpcfl.rows import constants, mixing

Group = str | int


class Layout:
    """The order and shape of named tensors in a flat row of ``width`` floats.

    A *layer* is a direct child of the model with parameters (protocols.md B4). A
    *group* of columns is one of these:

    * ``"all"``: all columns.
    * ``"head"`` or ``"output"``: the child named head, otherwise the last child.
    * ``"body"``: all columns before the head.
    * ``"neck"``: the last layer of the body.
    * an integer p: the upper p layers.
    * the dotted name of a module or parameter.

    Frozen tensors are not part of a row. A layer has at least one tensor that is not
    frozen, and a group of frozen tensors has no columns.

    Attributes:
        places: columns of each tensor by name, in the order of a row.
        names, shapes: names and shapes of the tensors, in the same order.
        layers: columns of each layer.
        batch_norm: columns of batch norm's scales and shifts, int64 ascending.
        frozen: number of frozen floats.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        batch_norm: Collection[str] = (),
        frozen: Collection[str] = (),
    ):
        """Compute the columns of each tensor.

        Args:
            named: tensors by name, in registration order.
            batch_norm: names of batch norm's parameters.
            frozen: names of the tensors that are not part of a row.
        """
        self.places: dict[str, slice] = {}
        self.shapes: list[tuple[int, ...]] = []
        self.width = self.frozen = 0
        # The first column of each tensor, or the column before which a frozen tensor
        # would be.
        self._begins: dict[str, int] = {}
        for name, tensor in named:
            self._begins[name] = self.width
            if name in frozen:
                self.frozen += tensor.numel()
                continue
            self.places[name] = slice(self.width, self.width + tensor.numel())
            self.shapes.append(tuple(tensor.shape))
            self.width += tensor.numel()
        self.names = list(self.places)
        self.layers = [self._find_span(child) for child in _list_children(self.names)]
        self.batch_norm = self.columns_of(n for n in self.names if n in batch_norm)
        children = _list_children(self._begins)
        self.head_name = (
            "head" if "head" in children else (children[-1] if children else "")
        )

    def _find_span(self, prefix: str) -> slice:
        """Return the columns of a module or parameter.

        Raises:
            UserError: The name is unknown, or its parameters are not consecutive.
        """
        named = [name for name in self._begins if _belongs(name, prefix)]
        inside = [self.places[name] for name in named if name in self.places]
        if named and not inside:
            return slice(self._begins[named[0]], self._begins[named[0]])
        if not inside:
            raise UserError(
                f"layer group '{prefix}' is unknown{suggest(prefix, self._list_groups())}"
            )
        if any(after.start != place.stop for place, after in pairwise(inside)):
            raise UserError(
                f"parameters of '{prefix}' are not consecutive; register them one "
                "after the other"
            )
        return slice(inside[0].start, inside[-1].stop)

    def _list_groups(self) -> list[str]:
        """Return the names of groups, as suggestions in errors."""
        modules = {name.rpartition(".")[0] for name in self._begins} - {""}
        return [
            "all",
            "body",
            "neck",
            "head",
            f"1 … {len(self.layers)}",
            *sorted(modules),
        ]

    def columns(self, group: Group) -> slice:
        """Return the columns of a group.

        Raises:
            UserError: The model has no such group.
        """
        if isinstance(group, int):
            if not 1 <= group <= len(self.layers):
                raise UserError(
                    f"method.layers = {group}: this model has {len(self.layers)} layers; choose 1 to "
                    f"{len(self.layers)}"
                )
            return slice(self.layers[-group].start, self.width)
        if group == "all":
            return slice(0, self.width)
        if group in ("head", "output"):
            return self._find_span(self.head_name)
        if group == "body":
            return slice(0, self.columns("head").start)
        if group == "neck":
            below = [
                layer
                for layer in self.layers
                if layer.stop <= self.columns("head").start
            ]
            if not below:
                raise UserError(
                    "layer group 'neck': this model has no layer below its head"
                    + (" that is not frozen" if self.frozen else "")
                )
            return below[-1]
        return self._find_span(group)

    def list_members(self, groups: Iterable[Group]) -> list[str]:
        """Return the names of the parameters in a union of groups, in row order."""
        spans = [self.columns(group) for group in groups]
        return [
            name
            for name, place in self.places.items()
            if any(span.start <= place.start < span.stop for span in spans)
        ]

    def columns_of(self, names: Iterable[str]) -> Tensor:
        """Return the concatenated columns of parameters, int64."""
        spans = [torch.arange(0)]
        for name in names:
            columns = self.columns(name)
            spans.append(torch.arange(columns.start, columns.stop))
        return torch.cat(spans)

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Return views ``[*lead, *shape]`` of rows ``[*lead, width]``, by name.

        Rows may have any leading dimensions.
        """
        lead = rows.shape[:-1]
        return {
            name: rows[..., place].view(*lead, *shape)
            for (name, place), shape in zip(
                self.places.items(), self.shapes, strict=True
            )
        }

    def write(
        self, tensors: Mapping[str, Tensor], rows: Tensor, chosen: Tensor
    ) -> None:
        """Write tensors into some rows.

        Columns without a tensor do not change; names outside the layout are ignored.

        Args:
            tensors: tensors ``[k, *shape]`` by name.
            rows: rows [n, width], which change in place.
            chosen: positions [k] of the rows to write.
        """
        for name, view in self.split(rows).items():
            if name in tensors:
                mixing.index_copy(view, chosen, tensors[name])


def _list_children(names: Iterable[str]) -> list[str]:
    """Return the direct children of the model that have tensors, in order."""
    return list(dict.fromkeys(name.split(".")[0] for name in names))


def _belongs(name: str, prefix: str) -> bool:
    """Return whether a tensor belongs to the parameter or module with this dotted name."""
    return name == prefix or name.startswith(prefix + ".")


def lay_out_parameters(module: nn.Module) -> Layout:
    """Return the layout of a module's parameters, whose constants are frozen."""
    normalising = set()
    for path, part in module.named_modules():
        if isinstance(part, constants.BATCH_NORMS):
            normalising |= {f"{path}.{name}" for name, _ in part.named_parameters()}
    frozen = constants.collect(module)
    return Layout(constants.list_parameters(module), normalising, frozen)


def lay_out_buffers(module: nn.Module) -> Layout:
    """Return the layout of a module's statistics: its buffers except constants.

    Integer counters become floats.
    """
    return Layout(constants.collect_statistics(module).items())


def find_floating(layout: Layout, module: nn.Module) -> Tensor:
    """Return a mask of the floating-point columns in a row of buffers, bool [width].

    The other columns are counters.
    """
    buffers = dict(module.named_buffers())
    return torch.cat(
        [
            torch.full((buffers[name].numel(),), buffers[name].is_floating_point())
            for name in layout.names
        ]
    )


def make_row(layout: Layout, module: nn.Module) -> Tensor:
    """Return a module's parameters or buffers as one float32 row ``[width]``.

    Args:
        layout: layout that lists the tensors of the row.
        module: module with these tensors.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    pieces = [tensors[name].detach().reshape(-1).float() for name in layout.names]
    return torch.cat(pieces) if pieces else torch.zeros(0)


def match_names(patterns: Sequence[str], names: Iterable[str], key: str) -> list[str]:
    """Return the names that match a pattern, in their own order.

    A pattern also matches the contents of a module: ``blocks.1`` matches all of
    ``blocks.1.*``. In a pattern ``*`` matches any characters, including dots.

    Args:
        patterns: patterns to match.
        names: names to select from.
        key: key of the experiment with the patterns, for errors.

    Raises:
        UserError: A pattern matches none of the names.
    """
    names = list(names)
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if _matches(pattern, name)}
        if not matched:
            raise UserError(
                f"{key}: '{pattern}' matches none of the names{suggest(pattern, names)}"
            )
        found |= matched
    return [name for name in names if name in found]


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name, or a module that contains it."""
    parts = name.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatchcase(one, pattern) for one in around)
