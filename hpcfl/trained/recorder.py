"""Fleets that record the models which a method scores in a replayed round.

Only the method knows a client's model, which it passes to the scoring. The hooks of the
round therefore run once more, and methods need no further code.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.clients.losses import Predict, Tensors


@dataclass(frozen=True)
class ScoredModel:
    """A column's models of n clients, as ``fleet.score`` received them.

    rows: [n, P], or [P] if it is the same for all. buffers: [n, B]. predict, variables:
    as for ``fleet.score``.
    """

    rows: Tensor
    buffers: Tensor
    predict: Predict | None
    variables: Tensors


@dataclass
class ModelRecorder(Fleet):
    """A fleet that records the scored models by column.

    It computes no scores: the run recorded them.
    """

    models: dict[str, ScoredModel] = field(default_factory=dict)

    def score(
        self,
        column: str | Sequence[str],
        rows: Tensor,
        predict: Predict | None = None,
        model: str = "model",
        variables: Tensors | None = None,
    ) -> None:
        columns = [column] if isinstance(column, str) else column
        copies = {name: tensor.clone() for name, tensor in (variables or {}).items()}
        buffers = self.buffers(model).clone()
        scored = ScoredModel(rows.clone(), buffers, predict, copies)
        for name in columns:
            self.models[name] = scored
