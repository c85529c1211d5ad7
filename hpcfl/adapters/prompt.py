"""A prompt: trained tokens in front of a sequence for a frozen model (adapters.md §3).

Lester, Al-Rfou, Constant, "The power of scale for parameter-efficient prompt tuning",
EMNLP 2021: the blocks read [P; X] with P [n, d] trained and X [T, d] the tokens'
vectors. Li and Liang, ACL 2021, train such a prefix for every block. Jia et al.,
"Visual prompt tuning", ECCV 2022, apply it to images: prompts have no positions, and
their outputs are dropped ("shallow").

The same applies here to all models, which need no code for it:

* X are the vectors with the same positions as without a prompt, including a class
  token;
* after the blocks the prompt is removed, so that a model can read the first or the last
  token;
* every token attends to the prompt. A padding mask hides the same tokens as before. A
  mask over pairs of tokens is extended: a token of the prompt attends to itself and to
  earlier tokens of the prompt, as in a causal model, but not to the sequence.

In the paper on images the prompt follows the class token, which is equivalent for
attention. Completely frozen layers are in evaluation mode, as in every model. With a
prompt these are all layers except the head, so they have no dropout. A prompt is
initialised like other tokens, from a truncated normal distribution with standard
deviation 0.02; Lester's is uniform within ±0.5, or words.

The model's class changes to a subclass, because torch has hooks for ``forward`` but not
for ``through_blocks``.
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
        prompt: Trained tokens [n, width].
    """

    prompt: Tensor

    def through_blocks(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pass the prompt and tokens [batch, tokens, width] through all blocks, and
        return the tokens without the prompt.
        """
        count = len(self.prompt)
        prompt = self.prompt.expand(x.shape[0], -1, -1)
        blocks: Any = super()
        result: Tensor = blocks.through_blocks(
            torch.cat([prompt, x], dim=1), extend_mask(mask, count)
        )
        return result[:, count:]


def extend_mask(mask: Tensor | None, count: int) -> Tensor | None:
    """Extend the mask of a sequence by a prompt of ``count`` tokens.

    Args:
        mask: Numbers added to scores, [tokens, tokens] or any shape that broadcasts to
            [batch, heads, tokens, tokens]; None for no mask.
        count: The number of tokens in the prompt.
    """
    if mask is None:
        return None
    rows = functional.pad(mask, (count, 0))
    if mask.shape[-2] == 1:
        return rows  # the row applies to all queries
    of_prompt = make_causal_mask(rows.shape[-1], mask.device)[:count]
    of_prompt = of_prompt.expand(*rows.shape[:-2], -1, -1)
    return torch.cat([of_prompt, rows], dim=-2)


def insert(module: nn.Module, adapter: Adapter) -> set[str]:
    """Insert a prompt before the sequence and return the name of its parameter.

    Raises:
        UserError: The model has no ``through_blocks`` or no width.
    """
    width: Any = getattr(module, "width", None)
    known = hasattr(module, "through_blocks") and isinstance(width, int)
    if not known or hasattr(module, "prompt"):
        raise UserError(
            "adapter.kind = 'prompt': the model needs a method through_blocks(x, mask) for "
            "tokens [batch, tokens, width], an attribute width, and no attribute prompt"
        )
    prompt = torch.empty(adapter.tokens, width)
    module.prompt = Parameter(nn.init.trunc_normal_(prompt, std=STD))
    plain = type(module)
    module.__class__ = type(plain.__name__, (Prompted, plain), {})
    return {"prompt"}
