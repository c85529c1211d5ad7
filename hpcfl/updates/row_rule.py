"""Base class of rules that need each client's update as a row on rank 0."""

from abc import abstractmethod
from math import ceil
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from hpcfl.experiment.sections import list_changed_keys
from hpcfl.rows import mixing
from hpcfl.updates import premixing
from hpcfl.updates.base import Context, Rule, SkippedRound


class RowRule(Rule):
    """Rule for rows of updates, with the keys that all these rules share.

    Attributes:
        needs_f: Whether the rule reads ``f``.
    """

    needs_f: ClassVar[bool] = False

    f: NonNegativeInt | None = Field(
        None, description="number of bad clients per round that the rule tolerates"
    )
    mixing: Literal["none", "nnm", "bucketing"] = Field(
        "none",
        description="mixing before the rule; nnm: replace each update by the mean of its n − f "
        "nearest updates; bucketing: average random groups",
    )
    bucket: PositiveInt = Field(
        2,
        description="bucketing: number of updates per group (the last may have fewer)",
    )

    @model_validator(mode="after")
    def _has_f(self) -> Self:
        needed_by = f"rule = '{self.rule}'" if self.needs_f else ""
        if self.mixing == "nnm":
            needed_by = "mixing = 'nnm'"
        if needed_by and self.f is None:
            raise ValueError(f"{needed_by} needs f, the number of bad clients")
        if "bucket" in list_changed_keys(self) and self.mixing != "bucketing":
            raise ValueError("bucket needs mixing = 'bucketing'")
        return self

    def find_unread(self) -> dict[str, list[str]]:
        """Return ``f`` as unread by a rule that does not tolerate a number of clients."""
        is_read = self.needs_f or self.mixing == "nnm"
        return {} if is_read or self.f is None else {"rule": ["f"]}

    @property
    def tolerated(self) -> int:
        """Number of bad clients that the rule tolerates."""
        return self.f or 0

    def count_rows(self, clients: int) -> int:
        """Return the number of rows after mixing the updates of ``clients`` clients."""
        return ceil(clients / self.bucket) if self.mixing == "bucketing" else clients

    def count_bytes(self, clients: int, width: int) -> int:
        if self.mixing == "none":
            return 0
        return self.count_rows(clients) * width * torch.float64.itemsize

    def describe(self, clients: int) -> str:
        rows = self.count_rows(clients)
        text = self.describe_rows(rows)
        if self.mixing == "nnm":
            nearest = clients - self.tolerated
            return (
                f"{text}, each replaced by the mean of its {nearest} nearest in float64, "
                "which needs twice their memory"
            )
        if self.mixing == "bucketing":
            return (
                f"{text}, each the mean of at most {self.bucket} of {clients} updates"
            )
        return text

    @abstractmethod
    def describe_rows(self, rows: int) -> str:
        """Return a predicate on the rule for ``describe``, such as "takes the median of
        5 values" for ``rows`` = 5.
        """

    def find_problem(self, clients: int) -> str:
        if self.mixing == "nnm" and clients <= 2 * self.tolerated:
            return (
                f"mixing = 'nnm' with f = {self.f} needs more than {2 * self.tolerated} "
                f"clients in a round, here {clients}"
            )
        rows = self.count_rows(clients)
        least = self.count_least()
        if rows >= least:
            return ""
        of_bucket = f", which make {rows} buckets" if rows < clients else ""
        return f"with f = {self.f} it needs {least} rows in a round, here {clients}{of_bucket}"

    def count_least(self) -> int:
        """Return the minimal number of rows that the rule can combine."""
        return 1

    def combine(self, updates: Tensor, weights: Tensor, context: Context) -> Tensor:
        """Return the combined update [P] of the rows without NaN or Inf.

        Raises SkippedRound if these rows are too few.
        """
        finite = find_finite(updates)
        if not finite.all():
            updates = mixing.pick(updates, finite.nonzero()[:, 0])
            weights = weights[finite]
        if problem := self.find_problem(len(updates)):
            raise SkippedRound(problem)
        if self.mixing == "nnm":
            updates = premixing.mix_nearest(updates, self.tolerated)
        if self.mixing == "bucketing":
            order = context.random("buckets").permutation(len(updates))
            updates = premixing.mix_buckets(updates, order, self.bucket)
            weights = weights.new_ones(len(updates))
        return self.combine_rows(updates, weights, context)

    @abstractmethod
    def combine_rows(self, rows: Tensor, weights: Tensor, context: Context) -> Tensor:
        """Return the combined update [P], float64. The rows are finite and enough.

        Args:
            rows: Updates after the experiment's mixing, [n, P].
            weights: Weights of the rows, float64 [n].
            context: Facts about the rows before the mixing.
        """


def find_finite(rows: Tensor) -> Tensor:
    """Return a mask bool [n] of the rows [n, P] without NaN or Inf."""
    return torch.stack([row.isfinite().all() for row in rows])
