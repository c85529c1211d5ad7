"""The decoder of GPT-2 (Radford et al., 2019) for a published file (``adapter.base``);
the default sizes are those of ``gpt2``.
"""

import torch
from torch import Tensor, nn

from hpcfl.models.attention import gelu_by_tanh, make_causal_mask
from hpcfl.models.transformer import (
    Depth,
    Dropout,
    Heads,
    Hidden,
    Longest,
    Padding,
    Tokens,
    Transformer,
    Vocabulary,
    Width,
    count_tokens,
    refuse_long,
)


class GPT(Transformer):
    """Pre-norm blocks with causal attention, and a head on a text's last token before
    the padding.

    Outside the blocks the parameters have the names of the published files, which
    ``adapter.names = "gpt2"`` maps.

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
        positions: Longest = 1024,
        padding: Padding = 0,
    ):
        tokens = count_tokens("gpt", shape, vocabulary)
        refuse_long("gpt", shape[0], positions)
        super().__init__(
            "gpt",
            tokens + positions,
            width=width,
            depth=depth,
            heads=heads,
            hidden=hidden,
        )
        self.padding = padding
        self.wte = Tokens(tokens, width)
        self.wpe = Tokens(positions, width)
        self.dropout = nn.Dropout(dropout)

        self.add_blocks(
            dropout,
            activation=gelu_by_tanh,
            attention_dropout=dropout,
            inner_dropout=False,
        )
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the head's input [batch, width] for token ids [batch, positions]."""
        places = torch.arange(x.shape[1], device=x.device)
        read = places * (x != self.padding)
        last = read.amax(dim=1)[:, None, None]
        vectors = self.compute_token_features(x)
        return vectors.gather(1, last.expand(-1, 1, vectors.shape[2]))[:, 0]

    def compute_token_features(self, x: Tensor) -> Tensor:
        """Return the head's input for each position, [batch, positions, width]."""
        places = self.wpe.weight[: x.shape[1]]
        vectors = self.wte(x) + places
        # A frozen layer has no dropout. This dropout applies to the vectors of tokens
        # and positions, so it is off if both are frozen.
        if self.wte.training or self.wpe.training:
            vectors = self.dropout(vectors)
        mask = make_causal_mask(x.shape[1], x.device)
        result: Tensor = self.ln_f(self.through_blocks(vectors, mask))
        return result


plugin = GPT
