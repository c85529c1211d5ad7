"""A prompt: trained tokens in front of a sequence, which a frozen model reads with it
(adapters.md §3).

Lester, Al-Rfou, Constant, "The power of scale for parameter-efficient prompt tuning", EMNLP
2021: the blocks read [P; X] with P [n, d] trained and X [T, d] the tokens' vectors; Li and
Liang, ACL 2021, train such a prefix of every block. For images Jia et al., "Visual prompt
tuning", ECCV 2022: prompts have no positions, and what the blocks make of them is left out
("shallow").

So it is here for all models, which thereby need not know of it:

* X are the vectors with their positions, which are those without a prompt, and the class
  token if there is one;
* behind the blocks the tokens are at their places again, so that a model reads the first
  or the last one as ever;
* every token sees the prompt. A mask of padding hides as much as before; where a mask says
  token by token who sees whom, a token of the prompt sees itself and those before it, as
  in a causal model, and none of the sequence.

For images it stands behind the class token in the paper, which is the same to attention.
Layers of which nothing is trained are in evaluation mode, as of every model: here all but
the head, so that they have no dropout. A prompt begins as tokens here do, by a truncated
normal of 0.02, in Lester's uniformly within ±0.5 or as words.
"""

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn import Parameter

from hpcfl.errors import UserError
from hpcfl.experiment.sections import Adapter
from hpcfl.models._attention import causal
from hpcfl.models._transformer import STD


class Prompted(nn.Module):
    """Joins the class of a model with ``through_blocks``.

    Attributes:
        prompt: [n, width].
    """

    prompt: Tensor

    def through_blocks(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens [batch, tokens, width] behind all blocks, which saw the prompt."""
        count = len(self.prompt)
        prompt = self.prompt.expand(x.shape[0], -1, -1)
        blocks: Any = super()
        result: Tensor = blocks.through_blocks(
            torch.cat([prompt, x], dim=1), with_prompt(mask, count)
        )
        return result[:, count:]


def with_prompt(mask: Tensor | None, count: int) -> Tensor | None:
    """The mask of a sequence behind a prompt of ``count`` tokens.

    Args:
        mask: added to scores, [tokens, tokens] or anything that broadcasts to [batch,
            heads, tokens, tokens].
    """
    if mask is None:
        return None
    rows = functional.pad(mask, (count, 0))
    if mask.shape[-2] == 1:
        return rows  # the same for whoever looks
    of_prompt = causal(rows.shape[-1], mask.device)[:count]
    of_prompt = of_prompt.expand(*rows.shape[:-2], -1, -1)
    return torch.cat([of_prompt, rows], dim=-2)


def insert(module: nn.Module, adapter: Adapter) -> set[str]:
    """Put a prompt in front of the sequence; the name of what is trained.

    Raises:
        UserError: the model does not say where its sequence is.
    """
    width: Any = getattr(module, "width", None)
    known = hasattr(module, "through_blocks") and isinstance(width, int)
    if not known or hasattr(module, "prompt"):
        raise UserError(
            "adapter.kind = 'prompt': the model does not say where its sequence of tokens "
            "is; it needs a method through_blocks(x, mask) for tokens [batch, tokens, "
            "width], the attribute width, and none named prompt"
        )
    prompt = torch.empty(adapter.tokens, width)
    module.prompt = Parameter(nn.init.trunc_normal_(prompt, std=STD))
    plain = type(module)
    module.__class__ = type(plain.__name__, (Prompted, plain), {})
    return {"prompt"}
