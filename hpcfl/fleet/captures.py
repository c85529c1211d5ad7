"""Where the graphs of one kernel are captured: one stream, one pool of memory, and the
graphs themselves.

They can share these because no two of them run at once, and they have to go together:
when one goes, torch frees the memory in which cuBLAS works on the stream of its capture
(``CUDAGraph::reset`` from 2.13 on), also where other graphs of that stream go on to use
it.
"""

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")


class Captures:
    """The graphs of one kernel by key, with the stream and the memory that they share.

    graphs: who captures one keeps it here, and nowhere else, so that ``forget`` ends
    all of them.
    """

    def __init__(self) -> None:
        self.graphs: dict[Hashable, Any] = {}
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def forget(self) -> None:
        """Let go of all graphs, and of the memory that they know."""
        self.graphs.clear()
        self._pool = None

    def capture(
        self, warm_up: Callable[[], object], work: Callable[[], Found]
    ) -> tuple[torch.cuda.CUDAGraph, Found]:
        """A graph of what ``work`` does, and what that returned, whose numbers come
        with the first replay.

        warm_up: does the like of it before, because libraries choose algorithms and
        workspaces in a first call, which a capture must not do.
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
            found = work()
        self._pool = self._pool or graph.pool()
        return graph, found


@contextmanager
def _no_collection() -> Iterator[None]:
    """A block in which Python collects no cycles: the end of an older graph in one
    would break a capture.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
