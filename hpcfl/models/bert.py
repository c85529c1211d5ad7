"""The encoder of BERT (Devlin et al., NAACL 2019) for a published file
(``adapter.base``); the default sizes are those of ``bert-base``.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from hpcfl.models.transformer import (
    Depth,
    Dropout,
    Heads,
    Hidden,
    Longest,
    NormEps,
    Padding,
    Tokens,
    Transformer,
    Vocabulary,
    Width,
    count_tokens,
    refuse_long,
)


class Embeddings(nn.Module):
    """Normed sum of the vectors of a token, its position and its sentence.

    All tokens belong to the first sentence.
    """

    def __init__(
        self,
        vocabulary: int,
        positions: int,
        types: int,
        width: int,
        dropout: float,
        norm_eps: float,
        first_position: int,
    ):
        super().__init__()
        self.first_position = first_position
        # These are the names in the published files.
        self.word_embeddings = Tokens(vocabulary, width)
        self.position_embeddings = Tokens(positions, width)
        self.token_type_embeddings = Tokens(types, width)
        self.LayerNorm = nn.LayerNorm(width, norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors [batch, positions, width] of token ids [batch, positions]."""
        end = self.first_position + x.shape[1]
        places = self.position_embeddings.weight[self.first_position : end]
        sentence = self.token_type_embeddings.weight[0]
        summed = self.word_embeddings(x) + sentence + places
        result: Tensor = self.dropout(self.LayerNorm(summed))
        return result


class Pooler(nn.Module):
    """Input of a text's head: its first token through a linear layer and tanh."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return features [batch, width] of tokens [batch, positions, width]."""
        result: Tensor = self.dropout(self.dense(x[:, 0]).tanh())
        return result


class Bert(Transformer):
    """Post-norm blocks in which every token attends to all tokens except padding.

    Outside the blocks the parameters have the names of the published files. In a block
    one layer holds queries, keys and values. ``adapter.names = "bert"`` maps all names.
    RoBERTa (Liu et al., 2019) is ``positions = 514, first_position = 2, types = 1,
    padding = 1, norm_eps = 1e-5`` and ``adapter.names = "roberta"``.

    Raises:
        UserError: The samples are not tokens, a text is longer than the number of
            positions, or the width is not a multiple of the number of heads.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        vocabulary: Vocabulary = None,
        width: Width = 768,
        depth: Depth = 12,
        heads: Heads = 12,
        hidden: Hidden = 3072,
        dropout: Dropout = 0.1,
        positions: Longest = 512,
        first_position: Annotated[
            int, Field(ge=0, description="position of a text's first token")
        ] = 0,
        types: Annotated[
            int,
            Field(
                ge=1, le=1 << 10, description="number of kinds of sentences in the file"
            ),
        ] = 2,
        padding: Padding = 0,
        norm_eps: NormEps = 1e-12,
    ):
        tokens = count_tokens("bert", shape, vocabulary)
        refuse_long("bert", shape[0], positions, first_position)
        vectors = tokens + positions + types
        super().__init__(
            "bert", vectors, width=width, depth=depth, heads=heads, hidden=hidden
        )
        self.padding = padding
        self.embeddings = Embeddings(
            vocabulary=tokens,
            positions=positions,
            types=types,
            width=width,
            dropout=dropout,
            norm_eps=norm_eps,
            first_position=first_position,
        )
        self.add_blocks(
            dropout,
            norm_first=False,
            attention_dropout=dropout,
            inner_dropout=False,
            norm_eps=norm_eps,
        )
        self.pooler = Pooler(width, dropout)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the head's input [batch, width] for token ids [batch, positions]."""
        vectors = self.embeddings(x)
        # With -∞, a text that consists of padding would become NaN.
        lowest = torch.finfo(vectors.dtype).min
        added = torch.zeros_like(x, dtype=vectors.dtype)
        added = added.masked_fill(x == self.padding, lowest)
        mask = added[:, None, None]
        result: Tensor = self.pooler(self.through_blocks(vectors, mask))
        return result


plugin = Bert
