"""Fleets that record the models that a method scores in a replayed round.

Only the method knows a client's model, which it passes to the scoring. Therefore the
hooks of the round run again, and methods need no further code.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.clients.losses import Predict, Tensors


@dataclass(frozen=True)
class ScoredModel:
    """Models of n clients in one column, as passed to ``fleet.score``.

    Attributes:
        rows: parameters [n, P], or [P] if they are the same for all.
        buffers: buffers [n, B].
        predict: prediction of the method, as in ``fleet.score``.
        variables: variables of the prediction, as in ``fleet.score``.
    """

    rows: Tensor
    buffers: Tensor
    predict: Predict | None
    variables: Tensors


@dataclass
class ModelRecorder(Fleet):
    """A fleet that records the scored models by column.

    It computes no scores, because the run has recorded them.
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
