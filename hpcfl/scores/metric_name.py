"""Names of a run's recorded numbers: this module formats and parses them.

All other rooms pass these names on; files and the paths within them use these texts.
"""

from dataclasses import dataclass

CLIENTS = "clients"  # as a column's number: the number of clients with a value
VALIDATION = "validation"
NEWCOMERS = "newcomers"
# columns whose numbers are no scores: phases of a round, values recorded by methods,
# and the clients' own time
SECONDS, RECORDED = "seconds", "recorded"
TIME, STALENESS, PARTICIPATION = "time", "staleness", "participation"
NO_SCORES = SECONDS, RECORDED, TIME, STALENESS, PARTICIPATION
# the number of sample gradients of a client in a round; without a client, the sum over
# clients
SAMPLE_GRADIENTS = "sample_gradients"


@dataclass(frozen=True)
class MetricName:
    """The name of a recorded number, as text ``[clients/][COLUMN/]NUMBER``.

    For instance ``pre/weighted``, ``validation/post/loss_std``, ``seconds/round``,
    ``floats_down``, ``clients/post/correct`` and ``clients/floats_up``.

    Attributes:
        number: The measured or counted quantity, such as ``weighted`` or
            ``floats_down``.
        column: The scored models, such as ``pre`` or ``validation/pre`` (see
            ``held_out``), or one of ``NO_SCORES``; "" for any other number.
        of_clients: True where each client has its own number, False for one number of
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
        """Parse the text of a name."""
        *path, number = text.split("/")
        of_clients = path[:1] == [CLIENTS]
        column = path[1:] if of_clients else path
        return cls(number, "/".join(column), of_clients)


def held_out(column: str) -> str:
    """Return the column of the same models, scored on held-out training samples."""
    return f"{VALIDATION}/{column}"


def is_held_out(column: str) -> bool:
    """Return whether a column was scored on held-out training samples."""
    return column.startswith(f"{VALIDATION}/")


def models_of(column: str) -> str:
    """Return the scored models of a column, without the samples that they were scored
    on.
    """
    return column.removeprefix(f"{VALIDATION}/")


def tuned(epochs: int) -> str:
    """Return the column of start models after some epochs of plain training at scoring."""
    return f"tuned_{epochs}"


def of_newcomers(column: str) -> str:
    """Return the column of models of clients that never took part in training."""
    return f"{NEWCOMERS}/{column}"


def is_of_newcomers(column: str) -> bool:
    """Return whether a column has models of clients that never took part in training."""
    return column.startswith(f"{NEWCOMERS}/")


# the number of floats that each client sends in a round
FLOATS_UP = str(MetricName("floats_up", of_clients=True))
