"""Steps and predictions of one kernel that are recorded, and where a GPU's graphs find
what they work on.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

from hpcfl.fleet.beside import Beside
from hpcfl.fleet.captures import Captures
from hpcfl.fleet.graphs import Graphed, Update
from hpcfl.fleet.homes import Homes
from hpcfl.fleet.losses import Tensors
from hpcfl.fleet.replay import Function, Replayed

Recording = TypeVar("Recording", Beside, Graphed)
# losses and predictions that stay recorded; a closure made anew in every round is a new
# one
MOST = 16


@dataclass(frozen=True)
class Recordable:
    """A function of tensors alone that may be recorded.

    key: the same for the same function in every round. what, labels: as for
    ``Replayed``. writes: whether it writes to its arguments, which only graphs can
        repeat.
    """

    key: Hashable
    function: Function
    what: str
    labels: int | None = None
    writes: bool = False

    @property
    def of_function(self) -> tuple[Function, str, int | None]:
        """The first arguments of ``Replayed`` and ``Graphed``."""
        return self.function, self.what, self.labels


class Recordings:
    """What was recorded last.

    replay: whether functions that ran often are recorded and the recordings run
    instead, on a GPU as graphs.
    apart: whether what depends on the lanes beside, on a CPU, is called for one lane
    after the other.
    dependent: the names of operators that were called there and do.
    """

    def __init__(self, replay: bool, apart: bool = False):
        self._replay, self._apart = replay, apart
        self.dependent: set[str] = set()
        self._made: dict[Hashable, Beside | Graphed] = {}
        self._captures = Captures()
        self._homes = Homes(self._captures.forget)

    def settle(self, kind: str, tensors: Tensors) -> Tensors:
        """Tensors ``[L, …]`` that stay for a whole training: on a GPU where its graphs
        look for them.
        """
        return self._homes.settle(kind, tensors)

    def replayed(self, recordable: Recordable) -> Function:
        """The function of tensors on a CPU with the recordings that were made of it, if
        there are to be any.
        """
        made = self._made.get(recordable.key)
        if not isinstance(made, Beside):
            plain = recordable.function
            repeats = self._replay and not recordable.writes
            fast = Replayed(*recordable.of_function) if repeats else plain
            made = Beside(plain, fast, self._apart, recordable.writes, self.dependent)
        return self._remembered(recordable.key, made)

    def graphed(
        self, recordable: Recordable, moved: list[int], update: Update | None = None
    ) -> Graphed:
        """The function of CUDA tensors with the graphs that were captured of it.

        moved, update: as for ``Graphed``.
        """
        made = self._made.get(recordable.key)
        made = (
            made
            if isinstance(made, Graphed)
            else Graphed(
                *recordable.of_function,
                moved,
                self._captures if self._replay else None,
                self._homes,
                update,
            )
        )
        return self._remembered(recordable.key, made)

    def check(self) -> None:
        """Raise RunFailure if a recording turned out to be wrong on a GPU since the
        last call.
        """
        for recording in self._made.values():
            if isinstance(recording, Graphed):
                recording.check()

    def clear(self) -> None:
        """Let go of all recordings, and of the memory on a GPU that they know."""
        self._made.clear()
        self._captures.forget()
        self._homes.clear()

    def _remembered(self, key: Hashable, recording: Recording) -> Recording:
        """The recording itself, the last to go; those used longest ago give way to it.

        On a GPU many at once do, because with one graph all go and have to be captured
        anew.
        """
        self._made.pop(key, None)
        self._made[key] = recording
        if len(self._made) > MOST:
            for oldest in list(self._made)[
                : MOST // 2 if isinstance(recording, Graphed) else 1
            ]:
                del self._made[oldest]
            self._captures.forget()
        return recording
