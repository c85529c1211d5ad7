"""The section ``[tune]`` of an experiment file: methods, ranges and budget of a search."""

from collections.abc import Mapping
from typing import Any

from pydantic import (
    Field,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hpcfl.errors import UserError
from hpcfl.experiment import wrong_values
from hpcfl.experiment.experiment_file import Setting, flat
from hpcfl.experiment.sections import Section, Seed


class Interval(Section):
    """An interval from ``low`` to ``high``, uniform, or with ``log`` uniform in the
    logarithm.
    """

    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _ascends(self) -> "Interval":
        if not self.low < self.high:
            raise ValueError(f"low = {self.low:g} must be below high = {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low:g} must be above 0 where log = true")
        return self


# The search range of a key: equally likely values, or an interval.
Range = list[Any] | Interval
# The keys that a tuning sets itself: those of its runs and their partitions.
OWN = ("name", "rounds", "seed", "partition.seed", "partition.file", "method.name")


def as_range(value: Any) -> Range | None:
    """Return the range that the value of a key means; None for a plain value.

    Raises ValueError.
    """
    if isinstance(value, list):
        if not value:
            raise ValueError("nothing to choose from")
        return value
    if not isinstance(value, dict):
        return None
    try:
        return Interval(**value)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        raise ValueError(
            "must be a value, a list of values, or "
            f"{{ low = …, high = …, log = true }}: {first['msg']}"
        ) from None


def is_interval(table: Mapping[str, Any]) -> bool:
    """Return whether a table means an interval and not a part of a dotted key."""
    return not Interval.model_fields.keys().isdisjoint(table)


def entries_of(table: Mapping[str, Any]) -> Setting:
    """Return the values and ranges of a table by dotted key. Raises ValueError.

    The table is nested if keys such as ``training.lr`` have no quotes.
    """
    entries = flat(table, is_value=is_interval)
    for key, value in entries.items():
        if key in OWN:
            raise ValueError(f"{key} is set by the tuning itself")
        try:
            as_range(value)
        except ValueError as error:
            raise ValueError(f"{key} = {value}: {error}") from None
    return entries


def split_entry(entry: str) -> tuple[str, str]:
    """Return the method's name and the column of an entry such as ``fedavg at tuned_5``.

    The column is "" if the entry names none.
    """
    name, _, column = entry.partition(" at ")
    return name, column


class Tune(Section):
    methods: list[str] = Field(
        min_length=1,
        description="the methods that are tuned, each by itself; 'NAME at COLUMN' is tuned "
        "and scored at that moment, such as 'fedavg at tuned_5'",
    )
    at: str = Field(
        "method",
        description="evaluation.score of all methods that name no column: the moment at which "
        "configurations are chosen, such as tuned_5",
    )
    searches: PositiveInt = Field(
        1,
        description="how often the whole search is repeated, with draws and partitions of its "
        "own",
    )
    hard_cap: bool | None = Field(
        None,
        description="count gradients of training alone in the budget, let no run begin a round "
        "that exceeds its share, and try the file's own configuration first; default: with "
        "more than one search",
    )
    budget: PositiveInt = Field(
        description="gradients of samples that one whole run may take, scoring included "
        "unless hard_cap; it says how many rounds a configuration has, at most rounds"
    )
    trials: PositiveInt = Field(8, description="configurations drawn for each method")
    rungs: PositiveInt = Field(
        3, le=20, description="steps of successive halving, the last is a whole run"
    )
    eta: int = Field(
        2, ge=2, description="of so many configurations of a rung one goes on"
    )
    seed: Seed = Field(0, description="seed of the draws of configurations")
    search_seeds: list[Seed] = Field(
        min_length=1,
        description="seeds, and so partitions, that configurations are tried on",
    )
    final_seeds: list[Seed] = Field(
        min_length=1,
        description="seeds, and so other partitions, that the chosen ones are played on",
    )
    overspend: bool = Field(
        False,
        description="search although the first rounds of all trials exceed the budget; not "
        "with hard_cap",
    )
    search: dict[str, Range] = Field(
        default_factory=dict,
        description="ranges by key that all methods have, such as training.lr, beside those "
        "that each method declares of its own keys",
    )
    overrides: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="by method and key another range, or a value that is not searched",
    )

    @property
    def is_capped(self) -> bool:
        """Return whether the budget is a hard cap on gradients of training."""
        return self.searches > 1 if self.hard_cap is None else self.hard_cap

    @field_validator("*")
    @classmethod
    def _countable(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept budgets and seeds larger than other integers."""
        return value

    @field_validator("methods", "search_seeds", "final_seeds")
    @classmethod
    def _each_once(cls, values: list[Any]) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError("must have each once")
        return values

    @model_validator(mode="after")
    def _has_one_budget(self) -> "Tune":
        if self.overspend and self.is_capped:
            raise ValueError(
                "overspend = true: the budget is a hard cap; leave out overspend, or set "
                "hard_cap = false"
            )
        return self

    @field_validator("search", mode="before")
    @classmethod
    def _ranges(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        entries = entries_of(given)
        for key, value in entries.items():
            if as_range(value) is None:
                raise ValueError(
                    f"{key} = {value}: one value is nothing to search; the file's own "
                    "section sets it"
                )
        return entries

    @field_validator("overrides", mode="before")
    @classmethod
    def _of_methods(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        of_methods = {}
        for method, entries in given.items():
            if isinstance(entries, dict):
                entries = entries_of(entries)
            of_methods[method] = entries
        return of_methods

    @field_validator("final_seeds")
    @classmethod
    def _other_partitions(cls, seeds: list[int], info: ValidationInfo) -> list[int]:
        both = sorted(set(seeds) & set(info.data.get("search_seeds", [])))
        if both:
            raise ValueError(
                f"{both} are search_seeds too, whose partitions chose the configurations"
            )
        return seeds


def parse(given: dict[str, Any], source: str) -> Tune:
    """Return the section ``[tune]`` of a file.

    Raises UserError with a line for each wrong key.
    """
    try:
        return Tune(**given)
    except ValidationError as error:
        lines = wrong_values.explain(error, "tune", lambda: Tune.model_fields)
        raise UserError(*(f"{source}: {line}" for line in lines)) from None
