"""A function of lanes' tensors on a CPU, recorded as a flat list of operations once it
has run often.

``vmap`` and autograd spend a fixed time in Python, whatever the size of the batch; the
arithmetic of small dense models takes no longer than that. A recording does without
Python; ``cuda_graphs.py`` captures it on a GPU. It calls the very same kernels in the
same order and so gives the same bits: it does not matter when a function begins to be
replayed, and a resumed run may begin anew. Now and then, after ever more replays, a
replay is compared with the function itself.

``torch.compile`` and ``aot_autograd`` do the like: results/benchmarks/README.md says why
they are not used.
"""

from collections import Counter
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hpcfl.clients.execution.lane_independence import Dependent, Function
from hpcfl.errors import RunFailure

# Calls before a function is recorded: recording costs as much time as many replays save.
OFTEN = 100
# Allowed difference of a replay, as a fraction of a tensor's largest value.
ROUNDING = 1e-5
AT_ONCE = 8  # lanes that are compared at once, for little memory
RESHAPES = {
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.detach.default,
}
PRODUCTS = {torch.ops.aten.mul.Scalar, torch.ops.aten.mul.Tensor}
ADDED_AT = torch.ops.aten.scatter_add.default
UNEQUAL, CHOICE = torch.ops.aten.ne.Scalar, torch.ops.aten.where.self
# They move the statistics of batch norm, and their schemas do not say so.
STATISTICS = {
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.cudnn_batch_norm.default,
}
FILLS = {
    torch.ops.aten.ones_like.default,
    torch.ops.aten.zeros_like.default,
    torch.ops.aten.new_zeros.default,
    torch.ops.aten.new_ones.default,
    torch.ops.aten.full_like.default,
}


class Recorded:
    """A function of tensors ``[L, …]`` on a CPU, whose results for a lane do not depend
    on the lanes beside it, and that is recorded when it has been called often.

    Each signature, which is the shapes, strides and types of the arguments, has a
    recording of its own. In a recording a number that the function reads from elsewhere
    stays what it was.
    """

    def __init__(
        self,
        function: Function,
        what: str = "the function",
        labels: int | None = None,
        replay: bool = True,
        apart: bool = False,
        writes: bool = False,
        dependent: set[str] | None = None,
    ):
        """Args:
        function: of tensors alone.
        what: names the function in an error.
        labels: the position of the argument that holds class numbers, if there is
            one.
        replay: whether it is ever recorded.
        apart: whether a function in which a lane's bits depend on the lanes beside
            is called for one lane after the other.
        writes: whether the function changes arguments.
        dependent: where the names of operators are noted that make it so.
        """
        self._function, self._what, self._labels = function, what, labels
        self._replay, self._apart, self._writes = replay, apart, writes
        self._dependent: set[str] = set() if dependent is None else dependent
        self._one_by_one: dict[tuple[torch.Size, ...], bool] = {}  # by shapes of a lane
        self._calls: Counter[Any] = Counter()
        self._recordings: dict[Any, Function] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results.

        Raises:
            RunFailure: A replay turns out to give something else.
        """
        # The shapes of one lane, whose operators decide.
        shapes = tuple([tensor.shape[1:] for tensor in tensors])
        if shapes not in self._one_by_one:
            # Looked at whenever shapes are new: a function may do something else then.
            dependent = Dependent()
            # Copies of the first lane's tensors, because the function may move
            # statistics.
            first_lane = [tensor[:1].clone() for tensor in tensors]
            with dependent:
                self._function(*first_lane)
            self._dependent |= dependent.names
            self._one_by_one[shapes] = bool(dependent.names) and self._apart
        if self._one_by_one[shapes]:
            parts = []
            for lane in range(len(tensors[0])):
                alone = tuple([tensor[lane : lane + 1] for tensor in tensors])
                compute = self._recorded_for(alone)
                parts.append(compute(*alone))
            return tuple(torch.cat(results) for results in zip(*parts, strict=True))
        if len(tensors[0]) > 1:
            compute = self._recorded_for(tensors)
            return compute(*tensors)
        # A library multiplies a single pair of matrices by another kernel than several
        # pairs: on Intel's processors MKL 2024.2 gives a lane with one sample other
        # bits alone than beside others. So a single lane runs beside a copy of itself.
        copies = tuple([torch.cat([tensor, tensor]) for tensor in tensors])
        compute = self._recorded_for(copies)
        results = compute(*copies)
        if self._writes:
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy[:1])
        return tuple(result[:1] for result in results)

    def _recorded_for(self, tensors: tuple[Tensor, ...]) -> Function:
        """Return the function itself, or a recording of it once it was called often with
        such tensors.

        Raises RunFailure if the recording turns out to give something else.
        """
        if not self._replay:
            return self._function
        signature = tuple(
            [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
        )
        self._calls[signature] += 1
        replays = self._calls[signature] - OFTEN
        if replays <= 0:
            return self._function
        if signature not in self._recordings:
            recording = record(self._function, tensors, self._labels)
            self._recordings[signature] = recording
        recording = self._recordings[signature]
        if is_compared(replays):
            self._compare(recording(*tensors), self._function(*tensors))
        return recording

    def _compare(
        self, results: tuple[Tensor, ...], expected: tuple[Tensor, ...]
    ) -> None:
        for result, plain in zip(results, expected, strict=True):
            if not is_same(result, plain) and is_apart(result, plain, plain):
                raise refusal(self._what)


def is_compared(number: int) -> bool:
    """Return whether this replay is compared with the function. Replays whose number is
    a power of four are.
    """
    return number & (number - 1) == 0 and number.bit_length() % 2 == 1


def is_same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN."""
    return bool(((tensor == other) | (tensor.isnan() & other.isnan())).all())


def is_apart(replayed: Tensor, plain: Tensor, again: Tensor) -> Tensor:
    """Return, as bool [], whether a replay differs from ``plain`` by more than
    rounding. ``plain`` is the function's own result.

    Args:
        again: a second result of the function, which differs from the first where sums
            have no fixed order.
    """
    tensors = [torch.atleast_1d(tensor) for tensor in (replayed, plain, again)]
    parts = zip(*[tensor.split(AT_ONCE) for tensor in tensors], strict=True)
    gaps = torch.stack([_gaps(*part) for part in parts])
    gap, noise, size, odd = gaps.amax(dim=0)
    apart: Tensor = (odd > 0) | (gap > 16 * noise + ROUNDING * size)
    return apart


def _gaps(replayed: Tensor, plain: Tensor, again: Tensor) -> Tensor:
    """Measure how far results are apart for ``is_apart``, float64 [4].

    The first two numbers are the largest differences of the replay from ``plain`` and
    of ``plain`` from ``again``. The third is the largest number of ``plain``. The
    fourth is 1 where the replay has other non-finite numbers.

    """
    finite = plain.isfinite() & again.isfinite()
    odd = (replayed.isfinite() != plain.isfinite()).any()
    replayed, plain, again = (
        torch.where(finite, tensor, 0) for tensor in (replayed, plain, again)
    )
    return torch.stack(
        [
            (replayed - plain).abs().amax().double(),
            (plain - again).abs().amax().double(),
            plain.abs().amax().double(),
            odd.double(),
        ]
    )


def refusal(what: str) -> RunFailure:
    """Return the error for a replay of ``what`` that gave another result."""
    return RunFailure(
        f"{what} reads a number that changed since its steps were recorded; keep what changes "
        "in the server's or the clients' state and give it as a variable, read as lane.NAME "
        "(runtime.replay = false records nothing, but what only Python keeps is lost when a "
        "run is resumed)"
    )


def record(
    function: Function, tensors: tuple[Tensor, ...], labels: int | None = None
) -> Function:
    """Return a function that repeats the operations of one call of ``function``. It
    takes tensors of the same signature.

    Left out are operations that change nothing, those that were done before and those
    with a constant result.
    ``labels``: as for ``Recorded``.
    """
    # With a mode at hand make_fx does not make one for every operation, which takes
    # most of its time. It is known to this thread alone, on which gradients of tensors
    # on a GPU are computed only when told so.
    mode = FakeTensorMode(allow_fallback_kernels=True)
    with (
        tracing(TracingContext(mode)),
        torch.autograd.set_multithreading_enabled(False),
    ):
        module = make_fx(function)(*tensors)
    done: dict[Any, fx.Node] = {}
    operations = [node for node in module.graph.nodes if node.op == "call_function"]
    in_place = any(
        _changes(node) for node in operations
    )  # then two equal calls may see different values
    for node in operations:
        # A product with one is a copy, which matters if one of both is written to; a
        # reshaped tensor is none.
        if _reshapes_nothing(node) or (not in_place and _times_one(node)):
            _replace(node, node.args[0])
        elif not in_place:
            first = done.setdefault(
                (node.target, repr(node.args), repr(node.kwargs)), node
            )
            if first is not node:
                _replace(node, first)
    if tensors[0].is_cuda:
        for number, node in enumerate(
            module.graph.find_nodes(op="call_function", target=ADDED_AT)
        ):
            _choose(module, node, tensors[0].device, f"places_{number}")
    if not in_place:
        _fold(module, tensors, labels)
    module.graph.eliminate_dead_code()
    module.recompile()
    return torch.no_grad()(module.forward)


def _changes(node: fx.Node) -> bool:
    """Return whether an operation writes to one of its arguments.

    An operation without a schema, such as taking one of several results, does not.
    """
    return isinstance(node.target, OpOverload) and (
        node.target._schema.is_mutable or node.target in STATISTICS
    )


def _reshapes_nothing(node: fx.Node) -> bool:
    return node.target in RESHAPES and _like(node, node.args[0])


def _times_one(node: fx.Node) -> bool:
    given: tuple[Any, ...] = node.args
    return node.target in PRODUCTS and given[1] == 1 and _like(node, given[0])


def _like(node: fx.Node, source: Any) -> bool:
    """Return whether ``source`` has the shape, strides and type of the node's
    result.
    """
    meta = node.meta.get("tensor_meta")
    other = source.meta.get("tensor_meta") if isinstance(source, fx.Node) else None
    if meta is None or other is None:
        return False
    return (meta.shape, meta.stride, meta.dtype) == (
        other.shape,
        other.stride,
        other.dtype,
    )


def _replace(node: fx.Node, other: Any) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def _choose(
    module: fx.GraphModule, node: fx.Node, device: torch.device, name: str
) -> None:
    """Replace the addition of one number to each row, at an index, by a choice, which
    gives the same bits.

    The gradient of cross-entropy is such an addition. A GPU takes some thirty kernels
    for one, a sort among them, where sums may not depend on the order in which threads
    add.
    """
    rows, dim, index, source = cast(tuple[fx.Node, int, fx.Node, fx.Node], node.args)
    shape, given, added = (
        source_node.meta["tensor_meta"].shape for source_node in (rows, index, source)
    )
    dim %= len(shape)
    if not given == added == (*shape[:dim], 1, *shape[dim + 1 :]):
        return
    places = torch.arange(shape[dim], device=device)
    module.register_buffer(name, places.view(-1, *[1] * (len(shape) - dim - 1)))
    with module.graph.inserting_before(node):
        at_index = module.graph.call_function(
            torch.ops.aten.eq.Tensor, (index, module.graph.get_attr(name))
        )
        total = module.graph.call_function(torch.ops.aten.add.Tensor, (rows, source))
        choice = module.graph.call_function(CHOICE, (at_index, total, rows))
        _replace(node, choice)


def _fold(
    module: fx.GraphModule, tensors: tuple[Tensor, ...], labels: int | None
) -> None:
    """Replace by a constant what is the same in every call.

    That is what is made of constants alone, tensors filled with a number, and the
    comparison by which a loss looks for class numbers to leave out, such as −100: no
    class number is below zero. A choice whose condition so turns out to hold everywhere
    is replaced by what it chooses.
    """
    constants: dict[fx.Node, Any] = {}
    classes = (
        None if labels is None else module.graph.find_nodes(op="placeholder")[labels]
    )

    class Values(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            value = super().run_node(node)
            given: tuple[Any, ...] = node.args
            if (
                node.op == "call_function"
                and not _random(node)
                and (
                    node.target in FILLS
                    or all(source in constants for source in node.all_input_nodes)
                    or (node.target is UNEQUAL and given[0] is classes and given[1] < 0)
                )
            ):
                constants[node] = value
            return value

    Values(module).run(*tensors)
    for node in module.graph.find_nodes(op="call_function", target=CHOICE):
        condition, chosen, _ = node.args
        if (
            node not in constants
            and condition in constants
            and constants[condition].all()
            and _like(node, chosen)
        ):
            _replace(node, chosen)
    for number, (node, value) in enumerate(constants.items()):
        if isinstance(
            value, Tensor
        ):  # an operation with several results: each of these is a node of its own
            module.register_buffer(f"folded_{number}", value)
            with module.graph.inserting_before(node):
                _replace(node, module.graph.get_attr(f"folded_{number}"))


def _random(node: fx.Node) -> bool:
    """Return whether an operation draws random numbers."""
    return (
        isinstance(node.target, OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
    )
