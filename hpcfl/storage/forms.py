"""Forms of what lies in a run's folder as JSON: what readers rely on. Further keys are let through."""

from typing import Any

from pydantic import ConfigDict, NonNegativeInt, PositiveInt
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.scores._described import Described

_OPEN = ConfigDict(extra="allow")


class Named(TypedDict):
    """A section that is about something with a name."""

    __pydantic_config__ = _OPEN
    name: str


class Data(TypedDict):
    __pydantic_config__ = _OPEN
    dataset: str


class Evaluation(TypedDict):
    __pydantic_config__ = _OPEN
    score: str
    metric: str


class Configuration(TypedDict):
    """A resolved configuration, a nested dictionary in the shape of the experiment file."""

    __pydantic_config__ = _OPEN
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


class Header(TypedDict, total=False):
    """The header of results."""

    __pydantic_config__ = _OPEN
    config: Configuration
    primary: str
    scores: dict[str, Described]
    completed: list[NonNegativeInt]
