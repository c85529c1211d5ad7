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
    """An embedding of characters, layers of LSTM cells, and a head on the last output.

    All parts have torch's default initialisation.

    Raises:
        UserError: The samples are not tokens.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        vocabulary: Vocabulary = None,
        width: Annotated[Size, Field(description="width of a character's vector")] = 8,
        hidden: Annotated[Size, Field(description="number of cells per layer")] = 256,
        depth: Annotated[int, Field(ge=1, le=100, description="number of layers")] = 2,
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
