"""The JSON in a run's folder, as far as readers rely on it; it may have further keys."""

from typing import Annotated, Any, NotRequired

from pydantic import (
    AfterValidator,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    with_config,
)
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.scores._described import Described

_OPEN = ConfigDict(extra="allow")
LONGEST = 255  # bytes of a file's name on nearly all file systems


def _fits(name: str) -> str:
    """The name. Raises ValueError for one that is too long for a file."""
    if len(name.encode()) > LONGEST:
        raise ValueError("too long for the name of a file")
    return name


# The name of a file in a folder, so that nobody's name leads out of it.
FileName = Annotated[
    str,
    StringConstraints(pattern=r"^[^/\x00]*[^/\x00.][^/\x00]*$"),
    AfterValidator(_fits),
]


@with_config(_OPEN)
class Named(TypedDict):
    """The section of a model or a method."""

    name: str


@with_config(_OPEN)
class Data(TypedDict):
    dataset: str


@with_config(_OPEN)
class Evaluation(TypedDict):
    score: str
    metric: str


@with_config(_OPEN)
class Configuration(TypedDict):
    """What readers need of a resolved configuration, ``Config.resolved``."""

    name: str
    seed: int
    rounds: PositiveInt
    data: Data
    partition: dict[str, Any]
    model: Named
    method: Named
    evaluation: Evaluation
    training: NotRequired[dict[str, Any]]


class RunFile(TypedDict):
    """``run.json``: which run the folder belongs to.

    format: of this file and all that lie beside it. config: ``Config.resolved``.
    """

    format: int
    config: Configuration


@with_config(_OPEN)
class Start(TypedDict):
    """One time that a run was begun or continued.

    after: rounds that were done. time: in words. failure: why the attempt before this
    one failed.
    """

    after: NonNegativeInt
    time: str
    ranks: PositiveInt
    commit: str | None
    failure: str | None


@with_config(_OPEN)
class Header(TypedDict, total=False):
    """The header of a file of results; that of rounds which are not merged yet lacks
    most entries.

    run: which run wrote the file, its fingerprint.
    primary: the column that is the method's result unless the configuration names
        another.
    scores: by name. completed: see ``Results``. starts: how often the run was begun and
        continued.
    ranks, command: of the last of these, the latter as the words of ``sys.argv``.
    clients: what the data call them, if anything, by number.
    groups: what the groups of clients are called that ``[[shift]]`` makes, by number.
    """

    run: str
    config: Configuration
    primary: str
    scores: dict[str, Described]
    completed: list[NonNegativeInt]
    starts: list[Start]
    ranks: PositiveInt
    command: list[str]
    clients: list[str]
    groups: list[str]
