"""A function of tensors, recorded as a flat list of operations once it has run often: the same bits without its overhead.

``vmap`` and autograd spend the same time in Python whatever the size of the batch; small dense models need no longer for the
arithmetic. On a GPU the recording is launched as one graph. The recording calls the very same kernels in the same
order, so it does not matter for the numbers when a function begins to be replayed (a resumed run begins anew).
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from hpcfl.fleet.graphs import Function, Graphs

OFTEN = 100  # calls; recording costs as much as many replays save
RESHAPES = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default,
            torch.ops.aten.detach.default}


class Replayed:
    """``function`` of tensors alone, without side effects; recorded for each signature of its arguments on its own."""

    def __init__(self, function: Function):
        self._function = function
        self._calls: Counter[Any] = Counter()
        self._recorded: dict[Any, Function] = {}
        self._graphs = Graphs()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        signature = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)
        recorded = self._recorded.get(signature)
        if recorded is not None:
            return recorded(*tensors)
        self._calls[signature] += 1
        if self._calls[signature] > OFTEN:
            recorded = record(self._function, tensors)
            if tensors[0].is_cuda:
                recorded = self._graphs.capture(recorded, tensors)
            self._recorded[signature] = recorded
            return recorded(*tensors)
        return self._function(*tensors)


def record(function: Function, tensors: tuple[Tensor, ...]) -> Function:
    """The operations of one call, those that reshape to the same shape and those done before left out."""
    module = make_fx(function)(*tensors)
    done: dict[Any, fx.Node] = {}
    operations = [node for node in module.graph.nodes if node.op == "call_function"]
    in_place = any(_changes(node) for node in operations)  # then two equal calls may see different values
    for node in operations:
        source = node.args[0] if node.args else None
        if node.target in RESHAPES and isinstance(source, fx.Node) and _shape(source) == _shape(node):
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
        elif not in_place:
            first = done.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
            if first is not node:
                node.replace_all_uses_with(first)
                module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return torch.no_grad()(module.forward)


def _changes(node: fx.Node) -> bool:
    """Whether an operation writes to one of its arguments; taking one of several results has no schema and does not."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _shape(node: fx.Node) -> Any:
    meta = node.meta.get("tensor_meta")
    return node if meta is None else (meta.shape, meta.dtype)
