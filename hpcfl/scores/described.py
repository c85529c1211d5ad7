"""Description of a score for readers of results: its unit, direction and recorded
names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


@with_config(ConfigDict(extra="allow"))
class Described(TypedDict):
    """Description of a score in the header of results; readers need no import of the
    score.

    Attributes:
        unit: The unit, as ``Score.unit``.
        better: The direction of better numbers.
        recorded: The name NAME of each summary over clients, recorded as
            ``COLUMN/NAME``. The
            score's name alone means the first one.
    """

    unit: Annotated[str, Field(max_length=20)]
    better: Literal["up", "down"]
    recorded: Annotated[dict[str, str], Field(min_length=1)]


@dataclass(frozen=True)
class Measure:
    """A summary of a score over clients, with one number for each column and round.

    Attributes:
        score: The score's name.
        kind: The kind of the summary, such as "mean".
        recorded: The summary is recorded as ``COLUMN/recorded``.
        unit: The unit, as in ``Described``.
        better: The direction of better numbers, as in ``Described``.
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
        """Factor from a recorded number to the displayed one."""
        return 100 if self.percent else 1

    def rank(self, number: float) -> float:
        """Return a value to order numbers by, higher for a better one."""
        return number if self.better == "up" else -number

    def shown(self, number: float) -> str:
        """Format a recorded number without its unit."""
        return f"{100 * number:.2f}" if self.percent else f"{number:.4g}"


def score_of(wanted: str) -> str:
    """Return the score in SCORE or SCORE/SUMMARY."""
    return wanted.partition("/")[0]


def resolve(wanted: str, scores: Mapping[str, Described]) -> Measure | None:
    """Return the measure for a name, or None if there is none.

    wanted: SCORE, SCORE/SUMMARY or the name of a recorded number.
    """
    for score, described in scores.items():
        for place, (kind, recorded) in enumerate(described["recorded"].items()):
            if wanted in (f"{score}/{kind}", recorded) or (
                wanted == score and place == 0
            ):
                better = (
                    "down" if kind == "std" else described["better"]
                )  # a smaller spread is better
                return Measure(score, kind, recorded, described["unit"], better)
    return None
