"""CUDA graphs: a function of lanes as one launch.

Launched one by one, hundreds of small kernels would leave a GPU waiting for the host. A
graph is captured for one number of lanes. Clients run out of mini-batches one by one, so
there would be a graph for nearly every number: lanes are added up to one of a few
*widths*, and what comes out of these is dropped. That is done from the first call on,
because libraries choose kernels by shape: it does not matter when a function begins to be
a graph, and a resumed run may begin anew.

Graphs read and write *static buffers*, into which arguments are copied before a replay.
torch has no public function that copies several tensors in one launch, as
``torch._foreach_copy_`` does.
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hpcfl.clients.execution.batched import BatchedKernel
from hpcfl.clients.execution.kernel import Work, is_full
from hpcfl.clients.execution.lane_independence import Function
from hpcfl.clients.losses import describe_function
from hpcfl.experiment.sections import Form

# Losses of which graphs are kept; a closure made anew in every round is a new one.
MOST = 16
# Calls before a function is captured, which takes as long as some tens of them.
SOON = 3
Result = TypeVar("Result")


def width(lanes: int, most: int) -> int:
    """Round the number of lanes up to three binary digits and zeros, at most ``most``.

    1 to 8, 10, 12, 14, 16, 20, … 32, 40, …: at most a quarter too many, and for up to
    100 lanes 23 widths.
    """
    step = 1 << max(0, (lanes - 1).bit_length() - 3)
    return min(-(-lanes // step) * step, most)


class Captures:
    """The graphs of one kernel, with the stream and the memory that they share.

    They can share these because no two of them run at once, and they have to go
    together: when one goes, torch frees the memory in which cuBLAS works on the stream of
    its capture (``CUDAGraph::reset`` from 2.13 on), also where other graphs of that
    stream go on to use it.

    Attributes:
        graphs: who captures one keeps it here, and nowhere else, so that ``forget`` ends
            all of them.
    """

    def __init__(self) -> None:
        self.graphs: dict[Hashable, Graph] = {}
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def forget(self) -> None:
        """Let go of all graphs, and of the memory that they know."""
        self.graphs.clear()
        self._pool = None

    def capture(
        self, warm_up: Callable[[], object], work: Callable[[], Result]
    ) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Capture a graph.

        Args:
            warm_up: does the like of ``work`` before, because libraries choose
                algorithms and workspaces in a first call, which a capture must not do.
            work: what the graph does.

        Returns:
            The graph, and what ``work`` returned, whose numbers come with the first
            replay.
        """
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            warm_up()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may copy from the GPU meanwhile, for a checkpoint: only this
        # one's calls are captured.
        with (
            _no_collection(),
            torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ),
        ):
            result = work()
        self._pool = self._pool or graph.pool()
        return graph, result


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend the collection of cycles in a block. A capture fails if Python destroys
    an older graph during it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class Graph:
    """A captured function, which it keeps alive, because the graph reads its constants.

    Attributes:
        inputs, outputs: the static buffers that the graph reads and leaves.
        written: positions of inputs that it changes.
    """

    graph: torch.cuda.CUDAGraph
    function: Function
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    written: Sequence[int]

    def copy_in(self, tensors: Sequence[Tensor]) -> None:
        """Copy arguments ``[a, …]`` into the first rows of the inputs; the other rows
        keep what they had.
        """
        lanes = len(tensors[0])
        _copy([buffer[:lanes] for buffer in self.inputs], tensors)

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        lanes = len(tensors[0])
        self.copy_in(tensors)
        self.graph.replay()
        _copy(
            [tensors[position] for position in self.written],
            [self.inputs[position][:lanes] for position in self.written],
        )
        return tuple(output[:lanes] for output in self.outputs)


class Graphed:
    """A ``function`` of CUDA tensors ``[a, …]``, one row a lane, that becomes a graph
    once called often.

    A number that the function reads from elsewhere stays in a graph what it was. So the
    first replay of each training is compared with the function itself, which from then
    on is called instead of a graph where both differ.

    Graphs for several widths share static buffers: one for fewer lanes takes the first
    rows. Memory of intermediate results is shared as well, because no two graphs run at
    once.
    """

    def __init__(
        self,
        function: Function,
        what: str,
        written: Sequence[int],
        captures: Captures | None,
    ):
        """Args:
        function: of tensors alone.
        what: names the function in a note.
        written: positions of arguments that the function changes.
        captures: where graphs are captured; None for no graphs at all: the function
            alone gives the same bits.
        """
        self._function, self._what = function, what
        self._written, self._captures = written, captures
        self._compared = False  # in this training
        self._calls: Counter[Any] = Counter()
        self._buffers: dict[Any, Tensor] = {}
        self._key = object()  # this function's among all captures

    def begin(self) -> None:
        """Begin another training."""
        self._compared = False

    def __call__(self, most: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results for these lanes. All but the last one are
        overwritten by the next call.

        Args:
            most: at most so many lanes are computed: they fit the GPU.
            tensors: ``[a, …]`` each.
        """
        wide = width(len(tensors[0]), most)
        shapes = [(tensor.shape[1:], tensor.dtype) for tensor in tensors]
        signature = (wide, *shapes)
        self._calls[signature] += 1
        graph = None
        if self._calls[signature] > SOON:
            graph = self._find_graph(signature, tensors, wide)
        if graph is None:
            return self._plain(tensors, wide)
        *results, last = (
            graph(tensors) if self._compared else self._checked(graph, tensors)
        )
        return (*results, last.clone())

    def _find_graph(
        self, signature: Hashable, tensors: Sequence[Tensor], wide: int
    ) -> Graph | None:
        """Return the graph for arguments of this kind; None where there is none."""
        if self._captures is None:
            return None
        key = self._key, signature
        if key not in self._captures.graphs:
            try:
                graph = self._capture(self._captures, tensors, wide)
            except RuntimeError as error:
                if is_full(error):
                    raise
                self._give_up(str(error))
                return None
            self._captures.graphs[key] = graph
        return self._captures.graphs[key]

    def _give_up(self, why: str) -> None:
        """Call the function itself from now on."""
        self._captures = None
        print(
            f"hpcfl: {self._what} runs without a CUDA graph, which takes longer: {why}",
            file=sys.stderr,
        )

    def _plain(self, tensors: Sequence[Tensor], wide: int) -> tuple[Tensor, ...]:
        lanes = len(tensors[0])
        given = [
            tensor.contiguous() if lanes == wide else _widened(tensor, wide)
            for tensor in tensors
        ]
        outputs = self._function(*given)
        for position in self._written:
            if given[position] is not tensors[position]:
                tensors[position].copy_(given[position][:lanes])
        return tuple(output.contiguous()[:lanes] for output in outputs)

    def _checked(self, graph: Graph, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay a graph and compare its results with the function's, which are returned
        where both differ.
        """
        self._compared = True
        lanes = len(tensors[0])
        graph.copy_in(tensors)
        given = self._copies(graph.inputs)
        plain = [*self._function(*given), *(given[place] for place in self._written)]
        expected = [result[:lanes] for result in plain]
        outputs = graph(tensors)
        replayed = [*outputs, *(tensors[place] for place in self._written)]
        pairs = zip(replayed, expected, strict=True)
        if torch.stack([is_equal(*pair) for pair in pairs]).all():
            return outputs
        self._give_up(
            "it reads a number that changed, or adds in another order in each call"
        )
        moved = expected[len(outputs) :]
        for position, tensor in zip(self._written, moved, strict=True):
            tensors[position].copy_(tensor)
        return tuple(expected[: len(outputs)])

    def _copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Arguments, those that the function changes as copies."""
        given = list(tensors)
        for position in self._written:
            given[position] = given[position].clone()
        return given

    def _capture(
        self, captures: Captures, tensors: Sequence[Tensor], wide: int
    ) -> Graph:
        inputs = tuple(
            self._buffer(("input", position), tensor, wide)
            for position, tensor in enumerate(tensors)
        )
        # Called once to see its outputs' shapes: what is allocated within a capture is
        # in the memory that all graphs share, so that the buffers of outputs must be
        # there before.
        results = self._function(*self._copies(inputs))
        outputs = tuple(
            self._buffer(("output", position), result, wide)
            for position, result in enumerate(results)
        )
        del results
        # Another thread would compute gradients outside of the capture.
        with torch.autograd.set_multithreading_enabled(False):
            graph, _ = captures.capture(
                lambda: self._function(*self._copies(inputs)),
                lambda: _copy(outputs, self._function(*inputs)),
            )
        return Graph(
            graph=graph,
            function=self._function,
            inputs=inputs,
            outputs=outputs,
            written=self._written,
        )

    def _buffer(self, key: Hashable, like: Tensor, wide: int) -> Tensor:
        """Return a contiguous static buffer ``[wide, …]``. A new buffer repeats the row
        of one lane.
        """
        key = (key, like.shape[1:], like.dtype)
        if key not in self._buffers or len(self._buffers[key]) < wide:
            self._buffers[key] = _widened(like[:1], wide)
        return self._buffers[key][:wide]


class GraphKernel(BatchedKernel):
    """The kernel of a GPU, on which what computes gradients becomes a graph."""

    def __init__(
        self,
        module: nn.Module,
        widest: int,
        form: Form = "grouped",
        replay: bool = True,
    ):
        """``replay``: whether a step that ran often becomes a graph."""
        super().__init__(module, widest, form)
        self._replay = replay
        self._functions: dict[Hashable, Graphed] = {}  # the oldest use first
        self._captures = Captures()

    def narrow(self, failed: int) -> None:
        super().narrow(failed)
        lanes = self.widest
        print(
            f"hpcfl: the GPU's memory did not hold {failed} lanes; at most {lanes} from now on, which "
            f"may change the last bits (with runtime.lanes = {lanes} from the beginning it does not)",
            file=sys.stderr,
        )
        self.forget()  # graphs hold memory
        gc.collect()  # and so may what the failed attempt left in cycles
        torch.cuda.empty_cache()

    def forget(self) -> None:
        """Let go of all graphs, and of the memory on a GPU that they know."""
        self._functions.clear()
        self._captures.forget()

    def prepare(
        self,
        key: Hashable,
        build: Callable[[], Function],
        work: Work,
        written: Sequence[int],
    ) -> Function:
        graphed = self._functions.pop(key, None)
        if graphed is None:
            captures = self._captures if self._replay else None
            what = describe_function(work.loss)
            graphed = Graphed(build(), what, written, captures)
        graphed.begin()
        self._functions[key] = graphed
        if len(self._functions) > MOST:
            # Many at once, because with one graph all go and have to be captured anew.
            for oldest in list(self._functions)[: MOST // 2]:
                del self._functions[oldest]
            self._captures.forget()
        lanes = len(next(iter(work.tensors.values())))
        return partial(graphed, lanes)

    def prepare_prediction(
        self, key: Hashable, build: Callable[[], Function]
    ) -> Function:
        # Blocks are large here: a graph of its own for each would only hold memory.
        return build()


def _widened(tensor: Tensor, wide: int) -> Tensor:
    """Copy ``tensor`` [a, …] into a contiguous ``[wide, …]`` that ends with copies of
    its first row.
    """
    repeated = tensor[:1].expand(wide - len(tensor), *tensor.shape[1:])
    return torch.cat([tensor, repeated]).contiguous()


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors: weights, which lie alike, by one kernel, the others by one each."""
    alike_targets, alike_sources = [], []
    for target, source in zip(targets, sources, strict=True):
        of_floats = target.dtype == source.dtype == torch.float32
        if of_floats and target.stride() == source.stride():
            alike_targets.append(target)
            alike_sources.append(source)
        else:
            target.copy_(source)
    if alike_targets:
        torch._foreach_copy_(alike_targets, alike_sources)


def is_equal(one: Tensor, other: Tensor) -> Tensor:
    """Return, as bool [], whether two tensors are equal, where NaN equals NaN."""
    return ((one == other) | (one.isnan() & other.isnan())).all()
