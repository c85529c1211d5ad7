"""What readers of results know of a score: its unit, which way is better, the names of
its numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


@with_config(ConfigDict(extra="allow"))
class Described(TypedDict):
    """A score as the header of results describes it, so that readers need not import
    it.

    better: the direction of better numbers. recorded: for each summary over clients the
    name NAME under which it is recorded as ``COLUMN/NAME``; the first is what the
    score's name alone stands for.
    """

    unit: Annotated[str, Field(max_length=20)]
    better: Literal["up", "down"]
    recorded: Annotated[dict[str, str], Field(min_length=1)]


@dataclass(frozen=True)
class Measure:
    """A summary of a score over clients, one number for each column and round.

    score: its name. kind: of the summary, such as "mean". recorded: it is recorded as
        ``COLUMN/recorded``.
    unit, better: as in ``Described``.
    """

    score: str
    kind: str
    recorded: str
    unit: str
    better: str

    @property
    def percent(self) -> bool:
        return self.unit == "%"

    @property
    def factor(self) -> int:
        """What a recorded number is multiplied by to be shown."""
        return 100 if self.percent else 1

    def rank(self, number: float) -> float:
        """A value to order numbers by, higher for a better one."""
        return number if self.better == "up" else -number

    def shown(self, number: float) -> str:
        """A recorded number as a text, without its unit."""
        return f"{100 * number:.2f}" if self.percent else f"{number:.4g}"


def score_of(wanted: str) -> str:
    """The score in SCORE or SCORE/SUMMARY."""
    return wanted.partition("/")[0]


def resolve(wanted: str, scores: Mapping[str, Described]) -> Measure | None:
    """The measure meant by SCORE, SCORE/SUMMARY or the name of a recorded number; None
    if there is none.
    """
    for score, described in scores.items():
        for place, (kind, recorded) in enumerate(described["recorded"].items()):
            if wanted in (f"{score}/{kind}", recorded) or (
                wanted == score and place == 0
            ):
                better = (
                    "down" if kind == "std" else described["better"]
                )  # the more alike clients are
                return Measure(score, kind, recorded, described["unit"], better)
    return None
