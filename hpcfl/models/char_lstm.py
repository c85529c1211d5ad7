"""The LSTM that predicts the character after a sequence, of LEAF (Caldas et al., arXiv
1812.01097) and FedTP, for Shakespeare.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from hpcfl.models import Classifier
from hpcfl.models.transformer import Vocabulary, count_tokens

Size = Annotated[int, Field(ge=1, le=1 << 14)]


class CharLSTM(Classifier):
    """Characters as vectors, two layers of cells, and the head, which reads the last
    output.

    The parts have torch's default initialisation. Raises UserError for samples that are
    no tokens.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        vocabulary: Vocabulary = None,
        width: Annotated[Size, Field(description="numbers of a character")] = 8,
        hidden: Annotated[Size, Field(description="cells of a layer")] = 256,
        depth: Annotated[
            int, Field(ge=1, le=100, description="how many layers of cells")
        ] = 2,
    ):
        super().__init__()
        tokens = count_tokens("char-lstm", shape, vocabulary)
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, hidden, depth, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the head's input [batch, hidden] for token ids [batch, positions]."""
        outputs: Tensor = self.lstm(self.embedding(x))[0]
        return outputs[:, -1]


plugin = CharLSTM
