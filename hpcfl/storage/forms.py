"""Forms of what lies in a run's folder as JSON: what readers rely on. Further keys are let through."""

from typing import Any

from pydantic import ConfigDict, NonNegativeInt, PositiveInt, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.scores._described import Described

_OPEN = ConfigDict(extra="allow")


@with_config(_OPEN)
class Named(TypedDict):
    """A section that is about something with a name."""

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
    """A resolved configuration, a nested dictionary in the shape of the experiment file."""

    name: str
    seed: int
    rounds: PositiveInt
    data: Data
    partition: dict[str, Any]
    model: Named
    method: Named
    evaluation: Evaluation


class RunFile(TypedDict):
    """``run.json``: whose the folder is."""

    identity: dict[str, Any]
    config: Configuration


@with_config(_OPEN)
class Header(TypedDict, total=False):
    """The header of results."""

    config: Configuration
    primary: str
    scores: dict[str, Described]
    completed: list[NonNegativeInt]
