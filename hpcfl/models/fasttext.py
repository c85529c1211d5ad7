"""fastText for AG News, as FedALA uses it (protocols.md B2): 3,157,508 parameters with
98,635 tokens.
"""

import torch
from torch import nn

from hpcfl.models import Classifier
from hpcfl.models.transformer import Vocabulary, count_tokens

WIDTH = 32


class FastText(Classifier):
    """The mean of the embeddings, a linear layer without activation and the output
    layer.

    The mean includes all positions, also padding. Token 0 represents unknown words and
    padding; its embedding is always zero.

    Raises:
        UserError: The samples are not tokens.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        vocabulary: Vocabulary = None,
    ):
        super().__init__()
        tokens = count_tokens("fasttext", shape, vocabulary)
        self.embedding = nn.Embedding(tokens, WIDTH, padding_idx=0)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's input [batch, 32] for token ids [batch, positions]."""
        features: torch.Tensor = self.hidden(self.embedding(x).mean(dim=1))
        return features


plugin = FastText
