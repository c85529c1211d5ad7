"""What readers know of a score: its unit, which way is better, the names of its recorded numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


@with_config(ConfigDict(extra="allow"))
class Described(TypedDict):
    """A score as the header of results keeps it, so that readers need not import it.

    recorded: summary over clients → the name of its number, ``COLUMN/name``; the first is what the score's
    name alone stands for.
    """

    unit: Annotated[str, Field(max_length=20)]
    better: Literal["up", "down"]
    recorded: Annotated[dict[str, str], Field(min_length=1)]


@dataclass(frozen=True)
class Measure:
    """A number of each column and round, ``COLUMN/recorded``: a summary ``kind`` of a score."""

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
    """The measure meant by SCORE, SCORE/SUMMARY or the name of a recorded number; None if there is none."""
    for score, about in scores.items():
        for place, (kind, recorded) in enumerate(about["recorded"].items()):
            if wanted in (f"{score}/{kind}", recorded) or (wanted == score and place == 0):
                better = "down" if kind == "std" else about["better"]  # clients that are alike
                return Measure(score, kind, recorded, about["unit"], better)
    return None
