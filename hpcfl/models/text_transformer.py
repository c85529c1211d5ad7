"""A transformer for short texts, as PFLlib has one for AG News."""

from torch import Tensor, nn
from torch.nn.functional import relu

from hpcfl.models.transformer import (
    Depth,
    Dropout,
    Heads,
    Hidden,
    Positions,
    Tokens,
    Transformer,
    Vocabulary,
    Width,
    count_tokens,
)


class TextTransformer(Transformer):
    """Post-norm blocks with ReLU over a text's tokens and a class token, and a head on
    the class token.

    Padding counts as a token. The model follows PFLlib's code with two differences:
    positions are learned instead of sines, and tokens and positions are initialised
    from a truncated normal distribution with standard deviation 0.02. The default width
    is fastText's; PFLlib's is 512.

    Raises:
        UserError: The samples are not tokens, or the width is not a multiple of the
            number of heads.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        vocabulary: Vocabulary = None,
        width: Width = 32,
        depth: Depth = 2,
        heads: Heads = 8,
        hidden: Hidden = 2048,
        dropout: Dropout = 0.1,
    ):
        name = "text-transformer"
        tokens = count_tokens(name, shape, vocabulary)
        super().__init__(
            name,
            tokens + shape[0],
            width=width,
            depth=depth,
            heads=heads,
            hidden=hidden,
        )
        self.embedding = Tokens(tokens, width)
        self.positions = Positions(shape[0], width, class_token=True, dropout=dropout)

        self.add_blocks(
            dropout,
            norm_first=False,
            activation=relu,
            attention_dropout=dropout,
        )
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the head's input [batch, width] for token ids [batch, positions]."""
        x = self.positions(self.embedding(x))
        return self.through_blocks(x)[:, 0]


plugin = TextTransformer
