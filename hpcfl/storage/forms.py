"""Types of JSON in a run's folder that readers rely on; files may have further keys."""

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
NAME_LETTERS = (
    200  # largest number of characters shown of a name from an untrusted file
)
NAME_BYTES = 255  # bytes; limit for file names on nearly all file systems


class AnotherRun(Damaged):
    """A file in a run's folder that another run has written."""


def check_run(written_by: object, run: str | None) -> None:
    """Raise AnotherRun unless a file was written by the given run.

    Every file of a run contains ``Config.fingerprint``; a user may copy files of
    another run into its folder.

    Args:
        written_by: fingerprint in the file.
        run: fingerprint of the run; None if unknown, which accepts every file.
    """
    if run is not None and written_by != run:
        other = str(written_by or "without a name")[:NAME_LETTERS]
        raise AnotherRun(f"written by another run: {other}")


def _check_length(name: str) -> str:
    """Return the name. Raises ValueError if it is too long for a file."""
    if len(name.encode()) > NAME_BYTES:
        raise ValueError("too long for a file name")
    return name


# A file name that cannot lead out of its folder.
FileName = Annotated[
    str,
    StringConstraints(pattern=r"^[^/\x00]*[^/\x00.][^/\x00]*$"),
    AfterValidator(_check_length),
]


@with_config(_OPEN)
class NamedSection(TypedDict):
    """The section of a model or a method."""

    name: str


@with_config(_OPEN)
class Data(TypedDict):
    dataset: str


@with_config(_OPEN)
class Partition(TypedDict):
    clients: PositiveInt
    seed: int


@with_config(_OPEN)
class Runtime(TypedDict):
    device: str


@with_config(_OPEN)
class Evaluation(TypedDict):
    score: str
    metric: str


@with_config(_OPEN)
class Configuration(TypedDict):
    """Keys of a resolved configuration, ``Config.resolved``, that readers need."""

    name: str
    seed: int
    rounds: PositiveInt
    data: Data
    partition: Partition
    runtime: Runtime
    model: NamedSection
    method: NamedSection
    evaluation: Evaluation
    training: NotRequired[dict[str, Any]]
    adapter: NotRequired[dict[str, Any]]


class RunFile(TypedDict):
    """Content of ``run.json``, which identifies the run of a folder.

    Attributes:
        format: format of this file and all other files in the folder.
        config: result of ``Config.resolved``.
    """

    format: int
    config: Configuration


@with_config(_OPEN)
class Start(TypedDict):
    """One start or continuation of a run.

    Attributes:
        after: number of finished rounds.
        time: time as a text.
        ranks: number of ranks.
        commit: commit of hpcfl, or None.
        failure: reason why the previous attempt failed, or None.
        inputs: checksums of the data set and of the user's files, by their names.
    """

    after: NonNegativeInt
    time: str
    ranks: PositiveInt
    commit: str | None
    failure: str | None
    inputs: NotRequired[dict[str, str | int]]


@with_config(_OPEN)
class Meta(TypedDict, total=False):
    """Entries of ``Manifest.meta`` that a continued run needs.

    Attributes:
        rounds: number of rounds of the run.
        inputs: checksums as in ``Start``.
        lanes: largest numbers of lanes of each rank, or None.
        number: metric of the best round, in the manifest of the best state.
    """

    rounds: PositiveInt
    inputs: dict[str, str | int]
    lanes: list[list[PositiveInt]] | None
    number: float


@with_config(_OPEN)
class Header(TypedDict, total=False):
    """Header of a file of results; files of unmerged rounds lack most entries.

    Attributes:
        run: fingerprint of the run that wrote the file.
        config: resolved configuration.
        primary: column of the method's result, unless the configuration names another.
        scores: descriptions of scores by name.
        completed: numbers of rounds as in ``Results``.
        starts: all starts and continuations.
        ranks: number of ranks in the last start.
        command: command of the last start, ``sys.argv``.
        clients: names of the clients in the data by number, if any.
        groups: names of the groups of clients with different shifts, by number.
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
