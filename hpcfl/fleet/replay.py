"""A function of tensors, recorded as a flat list of operations once it has run often: the same bits
without its overhead.

``vmap`` and autograd spend the same time in Python whatever the size of the batch; small dense models need
no longer for the arithmetic. On a GPU the recording is launched as one graph. The recording calls the very
same kernels in the same order, so it does not matter for the numbers when a function begins to be replayed
(a resumed run begins anew).
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

ROUNDING = 1e-5  # of a tensor's largest value
OFTEN = 100  # calls; recording costs as much as many replays save
SOON = 3  # calls on a GPU, where a replay saves nearly the whole step
AT_ONCE = 8  # lanes that are compared at once, for little memory
RESHAPES = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default,
            torch.ops.aten.detach.default}
PRODUCTS = {torch.ops.aten.mul.Scalar, torch.ops.aten.mul.Tensor}
UNEQUAL, CHOICE = torch.ops.aten.ne.Scalar, torch.ops.aten.where.self
FILLS = {torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default,
         torch.ops.aten.new_zeros.default, torch.ops.aten.new_ones.default, torch.ops.aten.full_like.default}


class Replayed:
    """``function`` of tensors alone, without side effects; recorded for each signature of its
    arguments on its own.

    A recording repeats what Python computed while it was made: a number that the function reads from
    elsewhere stays as it was. So a replay is compared with the function itself now and then, after ever
    longer times.

    On a GPU a recording is a graph: its results are good until the next call, and ``check`` says whether the
    comparisons were in order, because the host waits for their outcome.

    what: names the function in an error. labels: the position of an argument that holds class numbers.
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
    """So rarely that comparing takes less than 1 % of the time: more often, it would be seen
    in short runs."""
    return number & (number - 1) == 0 and number.bit_length() % 2 == 1


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether tensors are equal, where that is said of numbers that are none, too."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _apart(found: Tensor, plain: Tensor, again: Tensor) -> Tensor:
    """Whether a replay is further from the function's own result than rounding explains, bool [].

    again: a second result of the function, which differs where sums have no fixed order.
    """
    lanes = zip(*(torch.atleast_1d(tensor).split(AT_ONCE) for tensor in (found, plain, again)), strict=True)
    gap, noise, size, odd = torch.stack([_gaps(*three) for three in lanes]).amax(dim=0)
    apart: Tensor = (odd > 0) | (gap > 16 * noise + ROUNDING * size)
    return apart


def _gaps(found: Tensor, plain: Tensor, again: Tensor) -> Tensor:
    """The largest differences of a replay from the function's result and of this from another one, the
    largest number, and whether other numbers are not finite, float64 [4]."""
    finite = plain.isfinite() & again.isfinite()
    odd = (found.isfinite() != plain.isfinite()).any()
    found, plain, again = (torch.where(finite, tensor, 0) for tensor in (found, plain, again))
    return torch.stack([(found - plain).abs().amax().double(), (plain - again).abs().amax().double(),
                        plain.abs().amax().double(), odd.double()])


def record(function: Function, tensors: tuple[Tensor, ...], labels: int | None = None) -> Function:
    """The operations of one call, without those that change nothing, those done before and those whose
    result is constant."""
    module = make_fx(function)(*tensors)
    done: dict[Any, fx.Node] = {}
    operations = [node for node in module.graph.nodes if node.op == "call_function"]
    in_place = any(_changes(node) for node in operations)  # then two equal calls may see different values
    for node in operations:
        # a product is a copy, a reshaped tensor is not
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
    """Whether an operation writes to one of its arguments; taking one of several results has no schema
    and does not."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _reshapes_nothing(node: fx.Node) -> bool:
    return node.target in RESHAPES and _like(node, node.args[0])


def _times_one(node: fx.Node) -> bool:
    given: tuple[Any, ...] = node.args
    return node.target in PRODUCTS and given[1] == 1 and _like(node, given[0])


def _like(node: fx.Node, source: Any) -> bool:
    """Whether an argument is a tensor of the result's shape, strides and type."""
    meta = node.meta.get("tensor_meta")
    other = source.meta.get("tensor_meta") if isinstance(source, fx.Node) else None
    if meta is None or other is None:
        return False
    return (meta.shape, meta.stride, meta.dtype) == (other.shape, other.stride, other.dtype)


def _replace(node: fx.Node, other: Any) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def _fold(module: fx.GraphModule, tensors: tuple[Tensor, ...], labels: int | None) -> None:
    """Compute once what is the same in every call: what is made of constants alone, tensors filled with
    a number, and whether class numbers are none of those, below zero, that a loss leaves out."""
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
        if isinstance(value, Tensor):  # several results stay, and are not asked for any more
            module.register_buffer(f"folded_{number}", value)
            with module.graph.inserting_before(node):
                _replace(node, module.graph.get_attr(f"folded_{number}"))


def _random(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
