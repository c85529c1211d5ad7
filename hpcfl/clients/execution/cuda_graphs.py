"""CUDA graphs: functions of lanes as a single launch.

If hundreds of small kernels were launched one by one, the GPU would wait for the host.
A graph is captured for a fixed number of lanes, but clients run out of mini-batches one
by one, which would require a graph for nearly every number of lanes. The number is
therefore rounded up to one of a few *widths*, and the results of the added lanes are
discarded. Lanes are added from the first call, before a graph is captured, because
libraries choose kernels by shape. The bits therefore do not depend on the time of the
capture, and a resumed run can capture again.

Graphs read and write *static buffers*. Arguments are copied into these before a replay.
The copy uses ``torch._foreach_copy_``, because torch has no public function that copies
several tensors in one launch.
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

# Maximum number of losses with graphs. A closure that is created again in every round
# counts each time.
MOST = 16
# Number of calls before a function is captured. A capture takes as long as tens of
# calls.
SOON = 3
Result = TypeVar("Result")


def round_up(lane_count: int, most: int) -> int:
    """Round a number of lanes up to three significant binary digits, at most ``most``.

    Widths are 1 to 8, 10, 12, 14, 16, 20, … 32, 40, …: at most a quarter too large. Up
    to 100 lanes there are 23 widths.
    """
    step = 1 << max(0, (lane_count - 1).bit_length() - 3)
    return min(-(-lane_count // step) * step, most)


class Captures:
    """The graphs of one kernel, with the stream and the memory that they share.

    Sharing is possible because no two graphs run at once. All graphs must be released
    together: when one is destroyed, torch frees the workspace of cuBLAS on the stream
    of its capture (``CUDAGraph::reset`` from 2.13 on), even if other graphs of that
    stream still use it.

    Attributes:
        graphs: captured graphs. They are referenced only here, so that ``forget``
            destroys all of them.
    """

    def __init__(self) -> None:
        self.graphs: dict[Hashable, Graph] = {}
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def forget(self) -> None:
        """Release all graphs and their memory."""
        self.graphs.clear()
        self._pool = None

    def capture(
        self, warm_up: Callable[[], object], work: Callable[[], Result]
    ) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Capture a graph.

        Args:
            warm_up: function that runs the same operators as ``work`` before the
                capture, because the first call of a library chooses algorithms and
                workspaces, which is not allowed in a capture.
            work: function to capture.

        Returns:
            The graph, and the result of ``work``, whose values are valid after the
            first replay.
        """
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            warm_up()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Only calls of this thread are captured, because another thread may copy from
        # the GPU for a checkpoint.
        with (
            _suspend_collection(),
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
def _suspend_collection() -> Iterator[None]:
    """Disable garbage collection in a block.

    A capture fails if Python destroys an older graph during it.
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
    """A captured function, kept alive because the graph reads its constants.

    Attributes:
        graph: captured graph.
        function: function that was captured.
        inputs, outputs: static buffers that the graph reads and writes.
        written: positions of the inputs that the graph changes.
    """

    graph: torch.cuda.CUDAGraph
    function: Function
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    written: Sequence[int]

    def copy_in(self, tensors: Sequence[Tensor]) -> None:
        """Copy arguments ``[a, …]`` into the first rows of the inputs.

        Other rows do not change.
        """
        count = len(tensors[0])
        _copy([buffer[:count] for buffer in self.inputs], tensors)

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        count = len(tensors[0])
        self.copy_in(tensors)
        self.graph.replay()
        _copy(
            [tensors[position] for position in self.written],
            [self.inputs[position][:count] for position in self.written],
        )
        return tuple(output[:count] for output in self.outputs)


class Graphed:
    """A function of CUDA tensors ``[a, …]`` that is captured after a few calls.

    Arguments have one row per lane.

    A number that the function reads from elsewhere is constant in a graph. The first
    replay in each training is therefore compared with the function itself. If the
    results differ, the function is called instead of a graph from then on.

    Graphs for several widths share static buffers: a graph for fewer lanes uses the
    first rows. They also share the memory of intermediate results, because no two
    graphs run at once.
    """

    def __init__(
        self,
        function: Function,
        what: str,
        written: Sequence[int],
        captures: Captures | None,
    ):
        """Begin without a graph.

        Args:
            function: function that takes only tensors.
            what: name of the function in notes.
            written: positions of the arguments that the function changes.
            captures: storage for captured graphs. None disables graphs; the function
                itself gives the same bits.
        """
        self._function, self._what = function, what
        self._written, self._captures = written, captures
        self._compared = False  # whether a replay was compared in this training
        self._calls: Counter[Any] = Counter()
        self._buffers: dict[Any, Tensor] = {}
        self._key = object()  # identifies this function among all captures

    def begin(self) -> None:
        """Begin another training."""
        self._compared = False

    def __call__(self, most: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results for some lanes.

        The next call overwrites all results except the last one.

        Args:
            most: number of lanes of the chunk, the largest width.
            tensors: arguments, ``[a, …]`` each.
        """
        width = round_up(len(tensors[0]), most)
        shapes = [(tensor.shape[1:], tensor.dtype) for tensor in tensors]
        signature = (width, *shapes)
        self._calls[signature] += 1
        graph = None
        if self._calls[signature] > SOON:
            graph = self._find_graph(signature, tensors, width)
        if graph is None:
            return self._call_plainly(tensors, width)
        *results, last = (
            graph(tensors) if self._compared else self._check(graph, tensors)
        )
        return (*results, last.clone())

    def _find_graph(
        self, signature: Hashable, tensors: Sequence[Tensor], width: int
    ) -> Graph | None:
        """Return the graph for arguments of this kind; None if there is no graph."""
        if self._captures is None:
            return None
        key = self._key, signature
        if key not in self._captures.graphs:
            try:
                graph = self._capture(self._captures, tensors, width)
            except RuntimeError as error:
                if is_full(error):
                    raise
                self._give_up(str(error))
                return None
            self._captures.graphs[key] = graph
        return self._captures.graphs[key]

    def _give_up(self, why: str) -> None:
        """Call the function itself from now on, and print the reason."""
        self._captures = None
        print(
            f"hpcfl: {self._what} runs without a CUDA graph, which takes longer: {why}",
            file=sys.stderr,
        )

    def _call_plainly(
        self, tensors: Sequence[Tensor], width: int
    ) -> tuple[Tensor, ...]:
        count = len(tensors[0])
        given = [
            tensor.contiguous() if count == width else _widen(tensor, width)
            for tensor in tensors
        ]
        outputs = self._function(*given)
        for position in self._written:
            if given[position] is not tensors[position]:
                tensors[position].copy_(given[position][:count])
        return tuple(output.contiguous()[:count] for output in outputs)

    def _check(self, graph: Graph, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay a graph and compare its results with the results of the function.

        Returns:
            The results of the graph if they are equal, else the results of the
            function.
        """
        self._compared = True
        count = len(tensors[0])
        graph.copy_in(tensors)
        given = self._copy_written(graph.inputs)
        plain = [*self._function(*given), *(given[place] for place in self._written)]
        expected = [result[:count] for result in plain]
        outputs = graph(tensors)
        replayed = [*outputs, *(tensors[place] for place in self._written)]
        pairs = zip(replayed, expected, strict=True)
        if torch.stack([is_equal(*pair) for pair in pairs]).all():
            return outputs
        self._give_up(
            "it reads a value that changed, or its order of additions varies between calls"
        )
        moved = expected[len(outputs) :]
        for position, tensor in zip(self._written, moved, strict=True):
            tensors[position].copy_(tensor)
        return tuple(expected[: len(outputs)])

    def _copy_written(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the arguments, with copies of the arguments that the function changes."""
        given = list(tensors)
        for position in self._written:
            given[position] = given[position].clone()
        return given

    def _capture(
        self, captures: Captures, tensors: Sequence[Tensor], width: int
    ) -> Graph:
        inputs = tuple(
            self._find_buffer(("input", position), tensor, width)
            for position, tensor in enumerate(tensors)
        )
        # One call gives the shapes of the outputs. Their buffers must be allocated
        # before the capture: what a capture allocates is in memory shared by graphs.
        results = self._function(*self._copy_written(inputs))
        outputs = tuple(
            self._find_buffer(("output", position), result, width)
            for position, result in enumerate(results)
        )
        del results
        # Gradients computed by another thread would not be captured.
        with torch.autograd.set_multithreading_enabled(False):
            graph, _ = captures.capture(
                lambda: self._function(*self._copy_written(inputs)),
                lambda: _copy(outputs, self._function(*inputs)),
            )
        return Graph(
            graph=graph,
            function=self._function,
            inputs=inputs,
            outputs=outputs,
            written=self._written,
        )

    def _find_buffer(self, key: Hashable, like: Tensor, width: int) -> Tensor:
        """Return a contiguous static buffer ``[width, …]``.

        A new buffer repeats the row of one lane.
        """
        key = (key, like.shape[1:], like.dtype)
        if key not in self._buffers or len(self._buffers[key]) < width:
            self._buffers[key] = _widen(like[:1], width)
        return self._buffers[key][:width]


class GraphKernel(BatchedKernel):
    """Kernel for a GPU, which captures the computation of gradients as graphs."""

    def __init__(
        self,
        module: nn.Module,
        widest: int,
        form: Form = "grouped",
        replay: bool = True,
    ):
        """Begin without graphs.

        Args:
            module: model of one client.
            widest: maximum number of lanes in one call.
            form: form of a convolution over lanes.
            replay: whether steps are captured as graphs after a few calls.
        """
        super().__init__(module, widest, form)
        self._replay = replay
        self._functions: dict[Hashable, Graphed] = {}  # least recently used first
        self._captures = Captures()

    def narrow(self, failed: int) -> None:
        super().narrow(failed)
        most = self.widest
        print(
            f"hpcfl: {failed} lanes did not fit into the GPU's memory; using at most {most} from now on, "
            f"which may change the last bits. To avoid this, set runtime.lanes = {most} from the start",
            file=sys.stderr,
        )
        self.forget()  # graphs occupy memory
        gc.collect()  # so do cycles left by the failed attempt
        torch.cuda.empty_cache()

    def forget(self) -> None:
        """Release all graphs and their GPU memory."""
        self._functions.clear()
        self._captures.forget()

    def prepare(
        self,
        key: Hashable,
        build: Callable[[], Function],
        work: Work | None = None,
        written: Sequence[int] = (),
    ) -> Function:
        if work is None:
            # Blocks are large enough for single launches; graphs would only use memory.
            return build()
        graphed = self._functions.pop(key, None)
        if graphed is None:
            captures = self._captures if self._replay else None
            what = describe_function(work.loss)
            graphed = Graphed(build(), what, written, captures)
        graphed.begin()
        self._functions[key] = graphed
        if len(self._functions) > MOST:
            # Half of them at once, because every removal releases all graphs.
            for oldest in list(self._functions)[: MOST // 2]:
                del self._functions[oldest]
            self._captures.forget()
        lane_count = len(next(iter(work.tensors.values())))
        return partial(graphed, lane_count)


def _widen(tensor: Tensor, width: int) -> Tensor:
    """Copy ``tensor`` [a, …] into a contiguous tensor ``[width, …]``.

    The added rows are copies of its first row.
    """
    repeated = tensor[:1].expand(width - len(tensor), *tensor.shape[1:])
    return torch.cat([tensor, repeated]).contiguous()


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors: floats with equal strides in one launch, other tensors one by one."""
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
