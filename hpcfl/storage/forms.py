"""The JSON in a run's folder, as far as readers rely on it; it may have further keys."""

from typing import Any, NotRequired

from pydantic import ConfigDict, NonNegativeInt, PositiveInt, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.scores._described import Described

_OPEN = ConfigDict(extra="allow")


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
    """``run.json``: which run the folder belongs to, as ``Config.identity`` and ``Config.resolved``."""

    identity: dict[str, Any]
    config: Configuration


@with_config(_OPEN)
class Start(TypedDict):
    """One time that a run was begun or continued.

    after: rounds that were done. time: in words. failure: why the attempt before this one failed.
    """

    after: NonNegativeInt
    time: str
    ranks: PositiveInt
    commit: str | None
    failure: str | None


@with_config(_OPEN)
class Header(TypedDict, total=False):
    """The header of a file of results; that of rounds which are not merged yet lacks most entries.

    primary: the column that is the method's result unless the configuration names another.
    scores: by name. completed: see ``Results``. starts: how often the run was begun and continued.
    ranks, command: of the last of these, the latter as the words of ``sys.argv``.
    clients: what the data call them, if anything, by number.
    """

    config: Configuration
    primary: str
    scores: dict[str, Described]
    completed: list[NonNegativeInt]
    starts: list[Start]
    ranks: PositiveInt
    command: list[str]
    clients: list[str]
