"""Names of metrics in results, and the descriptions of scores.

All other rooms take names from here; files and the paths inside them contain these
texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

CLIENTS = "clients"  # prefix of names; as a column's number, the clients with a value
VALIDATION = "validation"
NEWCOMERS, ATTACKERS = "newcomers", "attackers"
# Columns whose numbers are not scores: numbers of clients, phases of a round, values
# recorded by methods, the clients' virtual time, and changes of updates.
SECONDS, RECORDED = "seconds", "recorded"
TIME, STALENESS, PARTICIPATION = "time", "staleness", "participation"
PRIVACY, AGGREGATION = "privacy", "aggregation"
NO_SCORES = (
    *(CLIENTS, SECONDS, RECORDED, TIME, STALENESS, PARTICIPATION),
    *(PRIVACY, AGGREGATION),
)
# Number of sample gradients of a client in a round; without a client, the sum over
# clients.
SAMPLE_GRADIENTS = "sample_gradients"
# Number of sample gradients that only scores needed; recorded in rounds with any.
SCORING_GRADIENTS = "scoring_sample_gradients"
# Other numbers without a column. A file cannot hold a column with such a name.
COUNTS = "floats_down", "floats_up", "bytes_down", "bytes_up", "diverged", "final"
NO_COLUMNS = ("", *NO_SCORES, *COUNTS, SAMPLE_GRADIENTS, SCORING_GRADIENTS)


@dataclass(frozen=True)
class MetricName:
    """The name of a recorded number, as text ``[clients/][COLUMN/]NUMBER``.

    For instance ``pre/weighted``, ``validation/post/loss_std``, ``seconds/round``,
    ``floats_down``, ``clients/post/correct`` and ``clients/floats_up``.

    Attributes:
        number: The measured or counted quantity, such as ``weighted`` or
            ``floats_down``.
        column: The scored models, such as ``pre`` or ``validation/pre`` (see
            ``name_held_out``), or one of ``NO_SCORES``; "" for any other number.
        of_clients: Whether each client has a number; otherwise there is one number for
            the round.
    """

    number: str
    column: str = ""
    of_clients: bool = False

    def __str__(self) -> str:
        client_part = [CLIENTS] if self.of_clients else []
        column_part = [self.column] if self.column else []
        return "/".join([*client_part, *column_part, self.number])

    @classmethod
    def parse(cls, text: str) -> "MetricName":
        """Parse a name from its text."""
        *path, number = text.split("/")
        of_clients = path[:1] == [CLIENTS]
        column = path[1:] if of_clients else path
        return cls(number, "/".join(column), of_clients)


EPSILON = MetricName("epsilon", PRIVACY)


def name_held_out(column: str) -> str:
    """Return the column of the same models, scored on held-out training samples."""
    return f"{VALIDATION}/{column}"


def is_held_out(column: str) -> bool:
    """Return whether a column was scored on held-out training samples."""
    return column.removeprefix(f"{ATTACKERS}/").startswith(f"{VALIDATION}/")


def strip_held_out(column: str) -> str:
    """Return the name of a column without the mark of held-out samples."""
    return column.removeprefix(f"{VALIDATION}/")


def is_trained(column: str) -> bool:
    """Return whether a column has models after a round's local training, also those of
    attackers or scored on held-out samples.
    """
    return column.rpartition("/")[2] == "post"


def name_tuned(epochs: int | str) -> str:
    """Return the column of start models after fine-tuning for a number of epochs."""
    return f"tuned_{epochs}"


def name_newcomers(column: str) -> str:
    """Return the column of the same models of newcomers, clients that never trained."""
    return f"{NEWCOMERS}/{column}"


def is_of_newcomers(column: str) -> bool:
    """Return whether a column has models of newcomers, clients that never trained."""
    return column.startswith(f"{NEWCOMERS}/")


def name_attackers(column: str) -> str:
    """Return the column of the same models of attackers."""
    return f"{ATTACKERS}/{column}"


def has_scores(column: str) -> bool:
    """Return whether a column has scores of models, including those of attackers."""
    return column.removeprefix(name_attackers("")) not in NO_COLUMNS


# Number of floats that each client sends in a round.
FLOATS_UP = str(MetricName("floats_up", of_clients=True))
# 1 for a client that diverged in a round, else 0.
DIVERGED = str(MetricName("diverged", of_clients=True))


@with_config(ConfigDict(extra="allow"))
class Described(TypedDict):
    """Description of a score in the header of results, with which results can be read
    without importing the score.

    Attributes:
        unit: Unit, as in ``Score``.
        better: Direction of better numbers.
        recorded: Name NAME of each summary over clients, recorded as ``COLUMN/NAME``,
            by the kind of the summary. The score's name without a summary refers to the
            first one.
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
        recorded: The name of the summary in results, after ``COLUMN/``.
        unit: The unit, as in ``Described``.
        better: The direction of better numbers, as in ``Described``.
    """

    score: str
    kind: str
    recorded: str
    unit: str = ""
    better: str = "up"

    @property
    def name(self) -> str:
        """Return the name to display: the score, and the kind if that is unusual."""
        kind = self.kind.replace("_", " ")
        is_usual = kind in ("weighted", "mean")
        return self.score if is_usual else f"{self.score}, {kind}"

    @property
    def is_percent(self) -> bool:
        return self.unit == "%"

    @property
    def factor(self) -> int:
        """Factor of the displayed number over the recorded number."""
        return 100 if self.is_percent else 1

    @property
    def label_end(self) -> str:
        """Return the unit as the end of a label, such as `` (%)``; "" without one."""
        return f" ({self.unit})" if self.unit else ""

    def orient(self, number: float) -> float:
        """Return a number with the sign that makes better numbers higher."""
        return number if self.better == "up" else -number

    def format(self, number: float) -> str:
        """Format a recorded number without its unit."""
        return f"{100 * number:.2f}" if self.is_percent else f"{number:.4g}"


def parse_score(wanted: str) -> str:
    """Return SCORE from a text SCORE or SCORE/SUMMARY."""
    return wanted.partition("/")[0]


def resolve(wanted: str, scores: Mapping[str, Described]) -> Measure | None:
    """Return the measure for a name, or None if no score has it.

    Args:
        wanted: SCORE, SCORE/SUMMARY or the name of a recorded number.
        scores: The descriptions of the scores by name.
    """
    for score, described in scores.items():
        for place, (kind, recorded) in enumerate(described["recorded"].items()):
            if wanted in (f"{score}/{kind}", recorded) or (
                wanted == score and place == 0
            ):
                # A smaller spread is better for every score.
                better = "down" if kind == "std" else described["better"]
                return Measure(
                    score=score,
                    kind=kind,
                    recorded=recorded,
                    unit=described["unit"],
                    better=better,
                )
    return None
