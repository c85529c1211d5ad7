"""A function of tensors, recorded as a flat list of operations once it has run often.

``vmap`` and autograd spend a fixed time in Python, whatever the size of the batch; the arithmetic of small
dense models takes no longer than that. A recording does without Python; on a GPU it is launched as one graph.
It calls the very same kernels in the same order and so gives the same bits: it does not matter when a
function begins to be replayed, and a resumed run may begin anew.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from hpcfl.errors import RunFailure
from hpcfl.fleet.graphs import Function, Graphs

ROUNDING = 1e-5  # how far a replay may be off, as a fraction of a tensor's largest value
OFTEN = 100  # calls before a function is recorded: recording costs as much time as many replays save
SOON = 3  # the same on a GPU, where a replay saves nearly the whole step
AT_ONCE = 8  # lanes that are compared at once, for little memory
RESHAPES = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default,
            torch.ops.aten.detach.default}
PRODUCTS = {torch.ops.aten.mul.Scalar, torch.ops.aten.mul.Tensor}
UNEQUAL, CHOICE = torch.ops.aten.ne.Scalar, torch.ops.aten.where.self
FILLS = {torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default,
         torch.ops.aten.new_zeros.default, torch.ops.aten.new_ones.default, torch.ops.aten.full_like.default}


class Replayed:
    """A ``function`` of tensors alone, without side effects, that is recorded when it has been called often.

    Each signature, which is the shapes, strides and types of the arguments, has a recording of its own. In a
    recording a number that the function reads from elsewhere stays what it was. Now and then, after ever more
    calls, a replay is therefore compared with the function itself.

    On a GPU a recording is a graph: its results are good until the next call, and ``check`` says whether the
    comparisons were in order, because the host has to wait for their outcome.

    what: names the function in an error.
    labels: the position of the argument that holds class numbers, if there is one.
    moved: positions of arguments that the function changes, on a GPU alone.
    """

    def __init__(self, function: Function, what: str = "the function", labels: int | None = None,
                 moved: Sequence[int] = ()):
        self._function = function
        self._what = what
        self._labels = labels
        self._moved = moved
        self._apart: list[Tensor] = []
        self._calls: Counter[Any] = Counter()
        self._recorded: dict[Any, Function] = {}
        self._graphs = Graphs()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What the function gives. Raises RunFailure where a replay turns out to give something else."""
        on_gpu = tensors[0].is_cuda  # a graph reads its own places, whatever lies how
        signature = tuple((tensor.shape, () if on_gpu else tensor.stride(), tensor.dtype)
                          for tensor in tensors)
        self._calls[signature] += 1
        replays = self._calls[signature] - (SOON if on_gpu else OFTEN)
        if replays <= 0:
            return self._function(*tensors)
        if signature not in self._recorded:
            self._recorded[signature] = self._record(tensors)
        if not _is_power_of_four(replays):
            return self._recorded[signature](*tensors)
        compared = self._graph_compared if on_gpu else self._compared
        return compared(self._recorded[signature], tensors)

    def check(self) -> None:
        """Raises RunFailure if a replay on a GPU did not give what the function gives; the host waits if
        anything was compared."""
        apart, self._apart = self._apart, []
        if apart and torch.stack(apart).any():
            self._refuse()

    def _record(self, tensors: tuple[Tensor, ...]) -> Function:
        if not tensors[0].is_cuda:
            return record(self._function, tensors, self._labels)
        return self._graphs.capture(lambda places: record(self._function, places, self._labels), tensors,
                                    self._moved)

    def _compared(self, replay: Function, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A replay. Raises RunFailure if it does not give what the function gives."""
        found, plain = replay(*tensors), self._function(*tensors)
        if not all(map(_same, found, plain)) and any(
                _apart(one, other, other) for one, other in zip(found, plain, strict=True)):
            self._refuse()
        return found

    def _graph_compared(self, replay: Function, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A replay, and for ``check`` whether it gives what the function gives.

        Some kernels add in another order in each call; how far two calls are apart says how much.
        """
        plain, again = ([*self._function(*given), *(given[position] for position in self._moved)]
                        for given in (self._copies(tensors), self._copies(tensors)))
        found = replay(*tensors)
        whole = [*found, *(tensors[position] for position in self._moved)]
        self._apart += [_apart(*three) for three in zip(whole, plain, again, strict=True)]
        return found

    def _copies(self, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        """The arguments, those that the function changes as copies."""
        return [tensor.clone() if position in self._moved else tensor
                for position, tensor in enumerate(tensors)]

    def _refuse(self) -> NoReturn:
        raise RunFailure(f"{self._what} reads a number that changed since its steps were recorded; "
                         "give what changes as a variable, which it reads as lane.NAME, or set "
                         "runtime.replay = false: nothing is recorded")


def _is_power_of_four(number: int) -> bool:
    """Whether the replay of this number is compared: so few that it takes less than 1 % of the time."""
    return number & (number - 1) == 0 and number.bit_length() % 2 == 1


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; NaN counts as equal to NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _apart(replayed: Tensor, plain: Tensor, again: Tensor) -> Tensor:
    """Whether a replay is further from ``plain``, the function's own result, than rounding explains: bool [].

    again: a second result of the function, which differs from the first where sums have no fixed order.
    """
    lanes = zip(*(torch.atleast_1d(tensor).split(AT_ONCE) for tensor in (replayed, plain, again)),
                strict=True)
    gap, noise, size, odd = torch.stack([_gaps(*three) for three in lanes]).amax(dim=0)
    apart: Tensor = (odd > 0) | (gap > 16 * noise + ROUNDING * size)
    return apart


def _gaps(replayed: Tensor, plain: Tensor, again: Tensor) -> Tensor:
    """How far results are apart, float64 [4], as ``_apart`` judges it.

    The largest differences of a replay from the function's result and of this from a second one, the largest
    number, and whether the replay has other numbers that are not finite.
    """
    finite = plain.isfinite() & again.isfinite()
    odd = (replayed.isfinite() != plain.isfinite()).any()
    replayed, plain, again = (torch.where(finite, tensor, 0) for tensor in (replayed, plain, again))
    return torch.stack([(replayed - plain).abs().amax().double(), (plain - again).abs().amax().double(),
                        plain.abs().amax().double(), odd.double()])


def record(function: Function, tensors: tuple[Tensor, ...], labels: int | None = None) -> Function:
    """A function that repeats the operations of one call of ``function``, for tensors of the same signature.

    Left out are operations that change nothing, those that were done before and those with a constant result.
    ``labels``: as for ``Replayed``.
    """
    module = make_fx(function)(*tensors)
    done: dict[Any, fx.Node] = {}
    operations = [node for node in module.graph.nodes if node.op == "call_function"]
    in_place = any(_changes(node) for node in operations)  # then two equal calls may see different values
    for node in operations:
        # A product with one is a copy, which matters if one of both is written to; a reshaped tensor is none.
        if _reshapes_nothing(node) or (not in_place and _times_one(node)):
            _replace(node, node.args[0])
        elif not in_place:
            first = done.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
            if first is not node:
                _replace(node, first)
    if not in_place:
        _fold(module, tensors, labels)
    module.graph.eliminate_dead_code()
    module.recompile()
    return torch.no_grad()(module.forward)


def _changes(node: fx.Node) -> bool:
    """Whether an operation writes to one of its arguments.

    What has no schema, such as taking one of several results, does not.
    """
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _reshapes_nothing(node: fx.Node) -> bool:
    return node.target in RESHAPES and _like(node, node.args[0])


def _times_one(node: fx.Node) -> bool:
    given: tuple[Any, ...] = node.args
    return node.target in PRODUCTS and given[1] == 1 and _like(node, given[0])


def _like(node: fx.Node, source: Any) -> bool:
    """Whether ``source`` is a tensor of the shape, strides and type of the node's result."""
    meta = node.meta.get("tensor_meta")
    other = source.meta.get("tensor_meta") if isinstance(source, fx.Node) else None
    if meta is None or other is None:
        return False
    return (meta.shape, meta.stride, meta.dtype) == (other.shape, other.stride, other.dtype)


def _replace(node: fx.Node, other: Any) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def _fold(module: fx.GraphModule, tensors: tuple[Tensor, ...], labels: int | None) -> None:
    """Replace by a constant what is the same in every call.

    That is what is made of constants alone, tensors filled with a number, and the comparison by which a loss
    looks for class numbers to leave out, such as −100: no class number is below zero. A choice whose
    condition so turns out to hold everywhere is replaced by what it chooses.
    """
    constants: dict[fx.Node, Any] = {}
    classes = None if labels is None else module.graph.find_nodes(op="placeholder")[labels]

    class Values(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            value = super().run_node(node)
            given: tuple[Any, ...] = node.args
            if node.op == "call_function" and not _random(node) and (
                    node.target in FILLS or all(source in constants for source in node.all_input_nodes)
                    or (node.target is UNEQUAL and given[0] is classes and given[1] < 0)):
                constants[node] = value
            return value

    Values(module).run(*tensors)
    for node in module.graph.find_nodes(op="call_function", target=CHOICE):
        condition, chosen, _ = node.args
        if (node not in constants and condition in constants and constants[condition].all()
                and _like(node, chosen)):
            _replace(node, chosen)
    for number, (node, value) in enumerate(constants.items()):
        if isinstance(value, Tensor):  # an operation with several results: each of these is a node of its own
            module.register_buffer(f"folded_{number}", value)
            with module.graph.inserting_before(node):
                _replace(node, module.graph.get_attr(f"folded_{number}"))


def _random(node: fx.Node) -> bool:
    """Whether an operation draws random numbers."""
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
