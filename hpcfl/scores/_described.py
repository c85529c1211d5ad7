"""What is to be known of a score where it is only read: its unit, its direction, the names of its recorded numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class Described(TypedDict):
    """A score as the header of results keeps it, so that readers need not import it.

    recorded: summary over clients → the name of its number, ``COLUMN/name``; the first is what the score's name stands for.
    """

    __pydantic_config__ = ConfigDict(extra="allow")
    unit: Annotated[str, Field(max_length=20)]
    better: Literal["up", "down"]
    recorded: Annotated[dict[str, str], Field(min_length=1)]


@dataclass(frozen=True)
class Measure:
    """A number of each column and round: ``recorded`` as ``COLUMN/recorded``, a summary ``kind`` of a score."""

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
        """What a recorded number is multiplied with to be shown."""
        return 100 if self.percent else 1

    def rank(self, number: float) -> float:
        """Higher for a better number."""
        return number if self.better == "up" else -number

    def shown(self, number: float) -> str:
        return f"{100 * number:.2f}" if self.percent else f"{number:.4g}"


def resolve(wanted: str, scores: Mapping[str, Described]) -> Measure | None:
    """The measure that is meant by SCORE, SCORE/SUMMARY or the name of a recorded number; None if there is no such score."""
    name, _, kind = wanted.partition("/")
    for score, about in scores.items():
        recorded = about["recorded"]
        found = kind or next(iter(recorded)) if name == score else next((one for one in recorded if recorded[one] == wanted), "")
        if found in recorded:
            better = "down" if found == "std" else about["better"]  # clients that are alike
            return Measure(score, found, recorded[found], about["unit"], better)
    return None
