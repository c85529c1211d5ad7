"""Common parts of the built-in transformers: a block, tokens with their positions, and
their initialisation.
"""

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from hpcfl.errors import UserError
from hpcfl.models import Classifier
from hpcfl.models.attention import attend, gelu

STD = 0.02  # standard deviation of initial tokens and positions (truncated normal)
MOST_PARAMETERS = 1_000_000_000  # limit for one client's model, 4 GB

Width = Annotated[int, Field(ge=1, le=1 << 16, description="width of a token's vector")]
Depth = Annotated[int, Field(ge=1, le=1000, description="number of blocks")]
Heads = Annotated[
    int, Field(ge=1, le=1 << 10, description="number of attention heads per block")
]
HeadWidth = Annotated[
    int, Field(ge=1, le=1 << 16, description="width of an attention head")
]
Hidden = Annotated[
    int, Field(ge=1, le=1 << 20, description="width of a block's hidden layer")
]
Dropout = Annotated[float, Field(ge=0, lt=1, description="dropout rate")]

NormEps = Annotated[
    float, Field(gt=0, le=1, description="ε that layer norm adds to variances")
]
Padding = Annotated[
    int, Field(ge=0, description="id of the padding token, which models ignore")
]
Longest = Annotated[
    int, Field(ge=1, le=1 << 20, description="maximal number of tokens in a text")
]

Vocabulary = Annotated[
    PositiveInt | None,
    Field(description="number of tokens; default: the data set's"),
]


def count_tokens(name: str, shape: tuple[int, ...], vocabulary: int | None) -> int:
    """Return the size of the vocabulary. Raises UserError for samples that are not
    tokens.
    """
    if len(shape) != 1 or vocabulary is None:
        size = "×".join(map(str, shape))
        missing = "" if vocabulary else " and no vocabulary"
        raise UserError(
            f"model.name = '{name}' needs token ids [positions], as in 'leaf' or "
            f"'ag-news'; a sample here has the shape {size}{missing}"
        )
    return vocabulary


def refuse_long(name: str, tokens: int, longest: int, first: int = 0) -> None:
    """Raise UserError for texts with more tokens than positions from the ``first`` on."""
    if first + tokens > longest:
        raise UserError(
            f"model.positions = {longest} of model.name = '{name}': a text here has "
            f"{tokens} tokens, the first at position {first}; shorten the texts"
        )


class Tokens(nn.Embedding):
    """A vector for each token of a vocabulary."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__(vocabulary, width)
        nn.init.trunc_normal_(self.weight, std=STD)


class SelfAttention(nn.Module):
    """Attention of a sequence to itself; ``qkv`` computes queries, keys and values of
    all heads at once.

    ``dropout`` is the dropout rate of the attention's weights.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        dropout: float,
        bias: bool,
    ):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=bias)
        self.out = nn.Linear(heads * head_width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply attention to tokens [batch, tokens, width]; ``mask`` is added to the
        scores.
        """
        parts = self.qkv(x).unflatten(2, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed, _ = attend(q, k, v, mask=mask, dropout=self.dropout)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Attention and two linear layers, each with a residual connection.

    With ``norm_first`` each is x + f(norm(x)), otherwise norm(x + f(x)) as in Vaswani
    et al. (NeurIPS 2017).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        hidden: int,
        dropout: float,
        *,
        norm_first: bool = True,
        activation: Callable[[Tensor], Tensor] = gelu,
        attention_dropout: float = 0.0,
        inner_dropout: bool = True,
        bias: bool = True,
        norm_eps: float = 1e-5,
    ):
        """Make the layers.

        Args:
            width: The width of a token.
            heads: The number of attention heads.
            head_width: The width of a head.
            hidden: The width of the first linear layer.
            dropout: The dropout rate of the outputs of attention and the linear layers.
            norm_first: Whether norms precede attention and the linear layers.
            activation: The activation after the first linear layer.
            attention_dropout: The dropout rate of the attention's weights.
            inner_dropout: Whether the first linear layer's output also has dropout.
            bias: Whether queries, keys and values have a bias.
            norm_eps: The ε that layer norm adds to variances.
        """
        super().__init__()
        self.width = width
        self.norm_first, self.activation = norm_first, activation
        self.norm1 = nn.LayerNorm(width, norm_eps)
        self.attention = SelfAttention(
            width, heads, head_width, dropout=attention_dropout, bias=bias
        )
        self.norm2 = nn.LayerNorm(width, norm_eps)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout if inner_dropout else 0.0)
        self.dropout3 = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform tokens [batch, tokens, width] into tokens of the same shape."""
        if self.norm_first:
            x = x + self._attend(self.norm1(x), mask)
            return x + self._transform(self.norm2(x))
        x = self.norm1(x + self._attend(x, mask))
        result: Tensor = self.norm2(x + self._transform(x))
        return result

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        result: Tensor = self.dropout1(self.attention(x, mask))
        return result

    def _transform(self, x: Tensor) -> Tensor:
        inner = self.dropout2(self.activation(self.linear1(x)))
        result: Tensor = self.dropout3(self.linear2(inner))
        return result


class Positions(nn.Module):
    """Learned position vectors, added to the tokens, and an optional class token before
    them. ``tokens`` is the maximal number of input tokens.
    """

    def __init__(self, tokens: int, width: int, class_token: bool, dropout: float):
        super().__init__()
        self.token: nn.Parameter | None = None
        if class_token:
            self.token = nn.Parameter(torch.empty(1, width))
            nn.init.trunc_normal_(self.token, std=STD)
        self.position = nn.Parameter(torch.empty(tokens + class_token, width))
        nn.init.trunc_normal_(self.position, std=STD)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add positions and return tokens [batch, tokens, width], the class token
        first.
        """
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        result: Tensor = self.dropout(x + self.position[: x.shape[1]])
        return result


class Transformer(Classifier):
    """A model with blocks, its children ``block1`` …, and a head that reads a sample's
    ``features``.

    Attributes:
        width: The width of a token between the blocks.
    """

    head: nn.Linear

    def __init__(
        self,
        name: str,
        vectors: int,
        *,
        width: int,
        depth: int,
        heads: int,
        hidden: int,
        head_width: int | None = None,
    ):
        """Set the sizes of the blocks without allocating them.

        Args:
            name: The model's name, for error messages.
            vectors: The number of vectors for positions and vocabulary together.
            width: The width of a token.
            depth: The number of blocks.
            heads: The number of attention heads per block.
            hidden: The width of a block's hidden layer.
            head_width: The width of a head; by default ``width / heads``.

        Raises:
            UserError: The width is not a multiple of the number of heads, or there are
                too many parameters.
        """
        super().__init__()
        if head_width is None:
            if width % heads:
                raise UserError(
                    f"model.heads = {heads} of model.name = '{name}' do not share "
                    f"model.width = {width} evenly"
                )
            head_width = width // heads
        inner = heads * head_width
        parameters = vectors * width + depth * width * (4 * inner + 2 * hidden)
        if parameters > MOST_PARAMETERS:
            raise UserError(
                f"model.name = '{name}': some {parameters:,} parameters with these sizes; "
                f"at most {MOST_PARAMETERS:,} are allowed"
            )
        self.width = width
        self._sizes = width, heads, head_width, hidden
        self._blocks = [f"block{number}" for number in range(1, depth + 1)]

    def add_blocks(self, dropout: float, **how: Any) -> None:
        """Add the blocks; the arguments are those of ``Block``."""
        for name in self._blocks:
            self.add_module(name, Block(*self._sizes, dropout=dropout, **how))

    def through_blocks(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pass tokens [batch, tokens, width] and ``mask`` through all blocks."""
        for name in self._blocks:
            x = self.get_submodule(name)(x, mask)
        return x
