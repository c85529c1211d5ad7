"""fastText for AG News, as FedALA uses it (protocols.md B2): 3,157,508 parameters with
98,635 tokens.
"""

from typing import Annotated

import torch
import torch.nn.functional as functional
from pydantic import Field, PositiveInt
from torch import nn

from hpcfl.errors import UserError

WIDTH = 32


class FastText(nn.Module):
    """The mean of the embeddings, a linear layer without activation and the output
    layer.

    The mean is over all positions, padding included. Token 0 stands for unknown words
    and padding; its embedding is zero and stays so. Raises UserError for samples that
    are no tokens.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        vocabulary: Annotated[
            PositiveInt | None,
            Field(description="how many tokens there are; left out, the data set's"),
        ] = None,
    ):
        super().__init__()
        if len(shape) != 1 or vocabulary is None:
            raise UserError(
                "model.name = 'fasttext' needs token ids [positions], "
                "such as 'ag-news'; a sample here has the shape "
                f"{'×'.join(map(str, shape))}{'' if vocabulary else ' and no vocabulary'}"
            )
        self.embedding = nn.Embedding(vocabulary, WIDTH, padding_idx=0)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The head's input [batch, 32] for token ids [batch, positions]."""
        words = functional.embedding(x, self.embedding.weight)
        # Not by padding_idx: under vmap it would keep only the first lane's embedding
        # at zero (torch 2.13).
        x = self.hidden(torch.where((x == 0)[..., None], 0, words).mean(dim=1))
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [batch, classes]."""
        logits: torch.Tensor = self.head(self.features(x))
        return logits


plugin = FastText
