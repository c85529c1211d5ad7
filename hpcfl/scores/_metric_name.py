"""The names under which a run's numbers are recorded: they are written and read here.

All other rooms pass these names on; the names of files and the paths within them are
these texts.
"""

from dataclasses import dataclass

CLIENTS = "clients"  # as a column's number: how many clients its numbers are of
VALIDATION = "validation"
NEWCOMERS = "newcomers"
# columns whose numbers are no scores: phases of a round, what methods record, and the
# clients' own time
SECONDS, RECORDED = "seconds", "recorded"
TIME, STALENESS, PARTICIPATION = "time", "staleness", "participation"
NO_SCORES = SECONDS, RECORDED, TIME, STALENESS, PARTICIPATION
# a client's gradients of samples in a round, and without a client the sum over clients
SAMPLE_GRADIENTS = "sample_gradients"


@dataclass(frozen=True)
class MetricName:
    """The name of a recorded number, as text ``[clients/][COLUMN/]NUMBER``.

    For instance ``pre/weighted``, ``validation/post/loss_std``, ``seconds/round``,
    ``floats_down``, ``clients/post/correct`` and ``clients/floats_up``.

    Attributes:
        number: What was measured or counted, such as ``weighted`` or ``floats_down``.
        column: The models that were scored, such as ``pre`` or ``validation/pre`` (see
            ``held_out``), one of ``NO_SCORES``; "" for any other number.
        of_clients: Whether each client has its own number; else it is the round's.
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
        """The name that is written as ``text``."""
        *path, number = text.split("/")
        of_clients = path[:1] == [CLIENTS]
        column = path[1:] if of_clients else path
        return cls(number, "/".join(column), of_clients)


def held_out(column: str) -> str:
    """The column of the same models, scored on held-out training samples."""
    return f"{VALIDATION}/{column}"


def is_held_out(column: str) -> bool:
    """Whether a column was scored on held-out training samples."""
    return column.startswith(f"{VALIDATION}/")


def models_of(column: str) -> str:
    """Which models a column was scored of, on whichever samples."""
    return column.removeprefix(f"{VALIDATION}/")


def tuned(epochs: int) -> str:
    """The column of start models after so many epochs of plain training at scoring."""
    return f"tuned_{epochs}"


def of_newcomers(column: str) -> str:
    """The column of models of clients that were never trained with."""
    return f"{NEWCOMERS}/{column}"


def is_of_newcomers(column: str) -> bool:
    """Whether a column is of clients that were never trained with."""
    return column.startswith(f"{NEWCOMERS}/")


# the floats that each client sends in a round
FLOATS_UP = str(MetricName("floats_up", of_clients=True))
