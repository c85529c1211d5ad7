"""Types of the JSON in a run's folder that readers rely on; files may have further
keys.
"""

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

from hpcfl.files.atomic import Damaged
from hpcfl.scores.metric_names import Described

_OPEN = ConfigDict(extra="allow")
SHOWN = 200  # the most letters of a name from an untrusted file
LONGEST = 255  # bytes of a file's name on nearly all file systems


class AnotherRun(Damaged):
    """A file of another run than that of its folder."""


def check_run(written_by: object, run: str | None) -> None:
    """Raise AnotherRun unless a file was ``written_by`` the run with the fingerprint ``run``.

    Every file of a run names it by ``Config.fingerprint``; a user may copy files of
    another run into its folder. run: None if it is unknown.
    """
    if run is not None and written_by != run:
        other = str(written_by or "one that it does not name")[:SHOWN]
        raise AnotherRun(f"of another run: {other}")


def _fits(name: str) -> str:
    """Return the name. Raises ValueError if it is too long for a file."""
    if len(name.encode()) > LONGEST:
        raise ValueError("too long for the name of a file")
    return name


# The name of a file, which cannot lead out of its folder.
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
    """The keys of a resolved configuration, ``Config.resolved``, that readers need."""

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
    """The content of ``run.json``, which identifies the run of a folder.

    format: of this file and all files beside it. config: ``Config.resolved``.
    """

    format: int
    config: Configuration


@with_config(_OPEN)
class Start(TypedDict):
    """One start or continuation of a run.

    after: the number of finished rounds. time: in words. failure: why the attempt
    before failed.
    """

    after: NonNegativeInt
    time: str
    ranks: PositiveInt
    commit: str | None
    failure: str | None


@with_config(_OPEN)
class Header(TypedDict, total=False):
    """The header of a file of results; that of unmerged rounds lacks most entries.

    run: the fingerprint of the run that wrote the file. primary: the column of the
    method's result unless the configuration names another. scores: by name. completed:
    see ``Results``. starts: all starts and continuations. ranks, command: of the last
    start, the command as the words of ``sys.argv``. clients: the data's names of the
    clients by number, if any. groups: the names of the groups of clients that
    ``[[shift]]`` makes, by number.
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
