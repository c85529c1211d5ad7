"""A causal transformer that predicts the character after a sequence, with the sizes of
FedTP's for Shakespeare (Li et al., CVPR 2023).
"""

from torch import Tensor, nn

from hpcfl.models.attention import make_causal_mask
from hpcfl.models.transformer import (
    Depth,
    Dropout,
    Heads,
    HeadWidth,
    Hidden,
    Positions,
    Tokens,
    Transformer,
    Vocabulary,
    Width,
    count_tokens,
)


class CharTransformer(Transformer):
    """Pre-norm blocks with causal attention over characters, and a head on the last
    one.

    FedTP's code has a post-norm encoder in which every character attends to all, and
    predicts the next character at every position. Here a sample has one label, the
    character after it. Tokens and positions are initialised from a truncated normal
    distribution with standard deviation 0.02.

    Raises:
        UserError: The samples are not tokens.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        vocabulary: Vocabulary = None,
        width: Width = 128,
        depth: Depth = 6,
        heads: Heads = 8,
        head_width: HeadWidth = 64,
        hidden: Hidden = 256,
        dropout: Dropout = 0.1,
    ):
        name = "char-transformer"
        tokens = count_tokens(name, shape, vocabulary)
        super().__init__(
            name,
            tokens + shape[0],
            width=width,
            depth=depth,
            heads=heads,
            hidden=hidden,
            head_width=head_width,
        )
        self.embedding = Tokens(tokens, width)
        self.positions = Positions(shape[0], width, class_token=False, dropout=dropout)

        self.add_blocks(dropout, bias=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the head's input [batch, width] for token ids [batch, positions]."""
        return self.compute_token_features(x)[:, -1]

    def compute_token_features(self, x: Tensor) -> Tensor:
        """Return the head's input for each position, [batch, positions, width]."""
        mask = make_causal_mask(x.shape[1], x.device)
        x = self.positions(self.embedding(x))
        result: Tensor = self.norm(self.through_blocks(x, mask))
        return result


plugin = CharTransformer
