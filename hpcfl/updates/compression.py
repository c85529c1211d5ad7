"""Compression of updates: what kinds have in common, and error feedback."""

from abc import abstractmethod
from fractions import Fraction
from math import ceil
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from hpcfl.experiment.sections import changed
from hpcfl.updates.base import Context, Transform

WORD = 32  # bits of a float32 number
ERROR, ESTIMATE, MEAN = "error", "estimate", "mean_estimate"  # of what is remembered


class Compression(Transform):
    """The base class of compressions, which send an update in fewer bits.

    With ``feedback = true`` a client remembers what it did not send, and adds it to its
    next update (Karimireddy, Rebjock, Stich, Jaggi, ICML 2019). With ``"ef21"`` it sends
    the compressed difference between its update and an estimate of it, which follows by
    what was sent; the server adds up the estimates of all clients (Richtárik, Sokolov,
    Fatkhullin, NeurIPS 2021; of a part of the clients: Fatkhullin et al., JMLR 2025).

    Attributes:
        is_biased: whether the expectation of what is sent differs from the update.
    """

    is_biased: ClassVar[bool] = True

    feedback: bool | Literal["ef21"] | None = Field(
        None,
        description="whether clients remember what they did not send; 'ef21': send "
        "differences from an estimate; default true where the kind is biased",
    )

    downloads: Literal["whole", "qsgd"] = Field(
        "whole",
        description="what the server sends: the whole model, or its quantised changes "
        "since the client's last round",
    )
    download_levels: PositiveInt = Field(
        7, description="with downloads = 'qsgd': levels above 0; 7 take 4 bits"
    )

    @model_validator(mode="after")
    def _has_downloads(self) -> Self:
        if "download_levels" in changed(self) and self.downloads != "qsgd":
            raise ValueError("download_levels needs downloads = 'qsgd'")
        return self

    @abstractmethod
    def compress(self, updates: Tensor, context: Context) -> Tensor:
        """Return compressed rows [n, P]. A row must not depend on the other rows, and
        ``updates`` must not change.
        """

    @property
    def remembers(self) -> bool | str:
        """Return ``feedback``, with the default of this kind."""
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
        """Return compressed rows. A row that is not finite stays as it is, so that its
        client counts as diverged.
        """
        is_finite = updates.isfinite().all(dim=1, keepdim=True)
        return torch.where(is_finite, self.compress(updates, context), updates)

    def finish(self, result: Tensor, context: Context) -> Tensor:
        if self.remembers != "ef21":
            return result
        context.memory[MEAN] = context.memory[MEAN] + context.weight * result
        return context.memory[MEAN]


class Sparse(Compression):
    """The base class of compressions that send k of P entries."""

    share: float | None = Field(
        None, gt=0, le=1, description="share of the entries that are sent, rounded up"
    )
    k: PositiveInt | None = Field(
        None, description="number of entries that are sent, instead of a share"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.share is None) == (self.k is None):
            raise ValueError("give either share or k, the entries that are sent")
        return self

    def count_entries(self, width: int) -> int:
        """Return k for P = ``width``, at least 1 and at most P."""
        if self.k is not None:
            return min(self.k, width)
        # 0.07 · 100 is above 7 in floating point
        return max(1, ceil(Fraction(str(self.share)) * width))

    def has_effect(self, width: int) -> bool:
        return self.remembers == "ef21" or self.count_entries(width) < width
