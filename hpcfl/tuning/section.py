"""Section ``[tune]`` of an experiment file: methods, ranges and budget of a search."""

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
from hpcfl.experiment import experiment_file, wrong_values
from hpcfl.experiment.experiment_file import Setting, flatten
from hpcfl.experiment.sections import Section, Seed


class Interval(Section):
    """Interval from ``low`` to ``high``, sampled uniformly.

    With ``log`` the logarithm is uniform.
    """

    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _refuse_empty(self) -> "Interval":
        if not self.low < self.high:
            raise ValueError(f"low = {self.low:g} must be below high = {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low:g} must be above 0 where log = true")
        return self


# Range of a key: a list of equally likely values, or an interval.
Range = list[Any] | Interval
# Keys that a tuning sets itself, and the beginning of keys that all its runs share.
OWN = ("name", "rounds", "seed", "partition.seed", "partition.file", "method.name")
SHARED = "partition."


def parse_range(value: Any) -> Range | None:
    """Return the range that a value describes; None for a plain value.

    Raises:
        ValueError: If the value is an empty list or an invalid interval.
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
    """Return whether a table describes an interval and is not part of a dotted key."""
    return not Interval.model_fields.keys().isdisjoint(table)


def list_entries(table: Mapping[str, Any]) -> Setting:
    """Return the values and ranges of a table by dotted key.

    The table is nested if keys such as ``training.lr`` have no quotes.

    Raises:
        ValueError: If a key is set by the tuning itself or a range is invalid.
    """
    entries = flatten(table, is_value=is_interval)
    for key, value in entries.items():
        if key in OWN:
            raise ValueError(f"{key} is set by the tuning itself")
        if key.startswith(SHARED):
            raise ValueError(
                f"{key} is the same for all runs of a tuning; set it in [partition]"
            )
        try:
            parse_range(value)
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
    largest = 1 << experiment_file.MOST_BITS  # budgets and seeds have no other limit

    methods: list[str] = Field(
        min_length=1,
        description="methods to tune, each separately; 'NAME at COLUMN' tunes and scores a "
        "method by this column, such as 'fedavg at tuned_5'",
    )
    at: str = Field(
        "method",
        description="evaluation.score for all methods without a column: the column by which "
        "configurations are chosen, such as tuned_5",
    )
    searches: PositiveInt = Field(
        1,
        description="number of independent searches, each with its own draws and partitions",
    )
    hard_cap: bool | None = Field(
        None,
        description="count only training gradients in the budget, stop a run before a round "
        "that exceeds its share, and try the configuration of the file first; default: true "
        "for more than one search",
    )
    budget: PositiveInt = Field(
        description="sample gradients that one whole run may take, scoring included unless "
        "hard_cap is set; it limits the rounds of a configuration, together with rounds"
    )
    trials: PositiveInt = Field(8, description="configurations drawn for each method")
    rungs: PositiveInt = Field(
        3,
        le=20,
        description="number of steps of successive halving; the last is a whole run",
    )
    eta: int = Field(
        2,
        ge=2,
        description="factor of successive halving: one of eta configurations continues",
    )
    seed: Seed = Field(0, description="seed of the draws of configurations")
    search_seeds: list[Seed] = Field(
        min_length=1,
        description="seeds, and thereby partitions, on which configurations are tried",
    )
    final_seeds: list[Seed] = Field(
        min_length=1,
        description="seeds, and thereby other partitions, for the final runs",
    )
    overspend: bool = Field(
        False,
        description="search even if the first rounds of all trials exceed the budget; not "
        "allowed with hard_cap",
    )
    search: dict[str, Range] = Field(
        default_factory=dict,
        description="ranges by key for all methods, such as training.lr, in addition to the "
        "ranges that each method declares for its keys",
    )
    overrides: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="ranges or fixed values by method and key",
    )

    @property
    def is_capped(self) -> bool:
        """Return whether the budget is a hard cap on training gradients."""
        return self.searches > 1 if self.hard_cap is None else self.hard_cap

    @field_validator("methods", "search_seeds", "final_seeds")
    @classmethod
    def _refuse_repeats(cls, values: list[Any]) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError("must have each once")
        return values

    @model_validator(mode="after")
    def _refuse_two_budgets(self) -> "Tune":
        if self.overspend and self.is_capped:
            raise ValueError(
                "overspend = true: the budget is a hard cap; leave out overspend, or set "
                "hard_cap = false"
            )
        return self

    @field_validator("search", mode="before")
    @classmethod
    def _list_ranges(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        entries = list_entries(given)
        for key, value in entries.items():
            if parse_range(value) is None:
                raise ValueError(
                    f"{key} = {value}: a range needs several values; set a single value in "
                    "its own section"
                )
        return entries

    @field_validator("overrides", mode="before")
    @classmethod
    def _list_overrides(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        of_methods = {}
        for method, entries in given.items():
            if isinstance(entries, dict):
                entries = list_entries(entries)
            of_methods[method] = entries
        return of_methods

    @field_validator("final_seeds")
    @classmethod
    def _refuse_search_partitions(
        cls, seeds: list[int], info: ValidationInfo
    ) -> list[int]:
        both = sorted(set(seeds) & set(info.data.get("search_seeds", [])))
        if both:
            raise ValueError(
                f"{both} are also in search_seeds, whose partitions chose the configurations"
            )
        return seeds


def parse(given: dict[str, Any], source: str) -> Tune:
    """Return the section ``[tune]`` of a file.

    Args:
        given: Table of the section.
        source: Name of the file, for errors.

    Raises:
        UserError: If a key is wrong; one line for each.
    """
    try:
        return Tune(**given)
    except ValidationError as error:
        lines = wrong_values.explain(error, "tune", lambda: Tune.model_fields)
        raise UserError(*(f"{source}: {line}" for line in lines)) from None
