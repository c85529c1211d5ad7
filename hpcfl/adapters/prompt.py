"""A prompt: trained tokens in front of a sequence for a frozen model (adapters.md §3).

Lester, Al-Rfou, Constant, "The power of scale for parameter-efficient prompt tuning",
EMNLP 2021: the blocks read [P; X] with P [n, d] trained and X [T, d] the tokens'
vectors. Li and Liang, ACL 2021, train such a prefix for every block. Jia et al.,
"Visual prompt tuning", ECCV 2022, apply it to images: prompts have no positions, and
their outputs are dropped ("shallow").

The same holds here for all models, which need no code for it:

* X are the vectors with the same positions as without a prompt, and the class token if
  there is one;
* behind the blocks the tokens have their original places again, so that a model can
  read the first or the last one;
* every token sees the prompt. A padding mask hides the same tokens as before. A mask
  over pairs of tokens is extended: a token of the prompt sees itself and those before
  it, as in a causal model, and no token of the sequence.

In the paper on images the prompt follows the class token, which makes no difference to
attention. Fully frozen layers are in evaluation mode, as in every model: here all but
the head, so that they have no dropout. A prompt starts like other tokens, as a
truncated normal of 0.02. Lester's starts uniformly within ±0.5 or as words.

The model's class changes to a subclass, because torch has hooks around ``forward`` alone
and none around ``through_blocks``.
"""

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn import Parameter

from hpcfl.errors import UserError
from hpcfl.experiment.sections import Adapter
from hpcfl.models.attention import make_causal_mask
from hpcfl.models.transformer import STD


class Prompted(nn.Module):
    """Mixin for the class of a model with ``through_blocks``.

    Attributes:
        prompt: [n, width].
    """

    prompt: Tensor

    def through_blocks(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pass tokens [batch, tokens, width] and the prompt through all blocks.

        The result has the tokens without the prompt.
        """
        count = len(self.prompt)
        prompt = self.prompt.expand(x.shape[0], -1, -1)
        blocks: Any = super()
        result: Tensor = blocks.through_blocks(
            torch.cat([prompt, x], dim=1), with_prompt(mask, count)
        )
        return result[:, count:]


def with_prompt(mask: Tensor | None, count: int) -> Tensor | None:
    """Extend the mask of a sequence by a prompt of ``count`` tokens.

    Args:
        mask: Added to scores, [tokens, tokens] or any shape that broadcasts to [batch,
            heads, tokens, tokens].
    """
    if mask is None:
        return None
    rows = functional.pad(mask, (count, 0))
    if mask.shape[-2] == 1:
        return rows  # one row for all tokens of q
    of_prompt = make_causal_mask(rows.shape[-1], mask.device)[:count]
    of_prompt = of_prompt.expand(*rows.shape[:-2], -1, -1)
    return torch.cat([of_prompt, rows], dim=-2)


def insert(module: nn.Module, adapter: Adapter) -> set[str]:
    """Put a prompt in front of the sequence and return the name of its parameter.

    Raises:
        UserError: The model has no ``through_blocks`` or no width.
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
