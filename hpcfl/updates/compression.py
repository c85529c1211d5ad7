"""Base classes of compressions of updates, with error feedback."""

from abc import abstractmethod
from fractions import Fraction
from math import ceil
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from hpcfl.updates.base import Context, Transform

WORD = 32  # bits of a float32 number
ERROR, ESTIMATE, MEAN = "error", "estimate", "mean_estimate"  # names of rows of state


class Compression(Transform):
    """Base class of compressions, which send an update in fewer bits.

    With ``feedback = true`` a client stores its compression error and adds it to its
    next update (Karimireddy, Rebjock, Stich, Jaggi, ICML 2019). With ``"ef21"`` a
    client stores an estimate of its update. It sends the compressed difference between
    update and estimate and adds it to the estimate. The server sums the estimates of
    all clients (Richtárik, Sokolov, Fatkhullin, NeurIPS 2021; with partial
    participation: Fatkhullin et al., JMLR 2025).

    Attributes:
        is_biased: Whether the expected compressed update differs from the update.
    """

    is_biased: ClassVar[bool] = True
    readers: ClassVar = {"downloads": {"qsgd": ("download_levels",)}}

    feedback: bool | Literal["ef21"] | None = Field(
        None,
        description="error feedback: true: clients add the compression error to their next "
        "update; 'ef21': clients send differences from an estimate; default: true for biased "
        "kinds",
    )

    downloads: Literal["whole", "qsgd"] = Field(
        "whole",
        description="content of downloads: the whole model, or its quantised changes since "
        "the client's last round",
    )
    download_levels: PositiveInt = Field(
        7,
        description="downloads = 'qsgd': number of levels above 0; 7 levels need 4 bits",
    )

    @model_validator(mode="after")
    def _has_downloads(self) -> Self:
        self.refuse_unread()
        return self

    @abstractmethod
    def compress(self, updates: Tensor, context: Context) -> Tensor:
        """Return compressed rows [n, P]. A row must not depend on the other rows, and
        ``updates`` must not change.
        """

    @property
    def remembers(self) -> bool | str:
        """Return ``feedback``, or this kind's default."""
        return self.is_biased if self.feedback is None else self.feedback

    def list_memory(self) -> tuple[str, ...]:
        if self.remembers == "ef21":
            return (ESTIMATE,)
        return (ERROR,) if self.remembers else ()

    def list_server_memory(self) -> tuple[str, ...]:
        return (MEAN,) if self.remembers == "ef21" else ()

    def apply(self, updates: Tensor, context: Context) -> Tensor:
        memory = context.memory
        if self.remembers == "ef21":
            sent = self.compress_finite(updates - memory[ESTIMATE], context)
            memory[ESTIMATE] = memory[ESTIMATE] + sent
        elif self.remembers:
            made = memory[ERROR] + updates
            sent = self.compress_finite(made, context)
            memory[ERROR] = made - sent
        else:
            sent = self.compress_finite(updates, context)
        return sent

    def compress_finite(self, updates: Tensor, context: Context) -> Tensor:
        """Return compressed rows [n, P]. A row with NaN or Inf stays unchanged, so that
        its client counts as diverged.
        """
        is_finite = updates.isfinite().all(dim=1, keepdim=True)
        return torch.where(is_finite, self.compress(updates, context), updates)

    def finish(self, result: Tensor, context: Context) -> Tensor:
        if self.remembers != "ef21":
            return result
        context.memory[MEAN] = context.memory[MEAN] + context.weight * result
        return context.memory[MEAN]


class Sparse(Compression):
    """Base class of compressions that send k of P entries."""

    share: float | None = Field(
        None, gt=0, le=1, description="share of the entries to send, rounded up"
    )
    k: PositiveInt | None = Field(
        None, description="number of entries to send, instead of share"
    )

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.share is None) == (self.k is None):
            raise ValueError("set either share or k, the entries to send")
        return self

    def count_entries(self, width: int) -> int:
        """Return k for P = ``width``, at least 1 and at most P."""
        if self.k is not None:
            return min(self.k, width)
        # In floating point 0.07 · 100 is above 7 and would be rounded up to 8.
        return max(1, ceil(Fraction(str(self.share)) * width))

    def has_effect(self, width: int) -> bool:
        return self.remembers == "ef21" or self.count_entries(width) < width
