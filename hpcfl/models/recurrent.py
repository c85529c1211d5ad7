"""LSTM and GRU that batch over clients, with torch's parameters: a loop over time
(adapters.md §2).

torch's layers have no batching rule for several clients. A single client uses torch's
operator, which is faster on a CPU.
"""

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from hpcfl.models.layer_replacements import IN_BATCH_OF_CLIENTS
from hpcfl.models.random import RandomLayer


def _sigmoid(x: Tensor) -> Tensor:
    """Compute the sigmoid by tanh, whose formula is the same for all numbers of a
    tensor.
    """
    return 0.5 + 0.5 * torch.tanh(0.5 * x)


class _Recurrent(RandomLayer):
    """Stacked layers of cells in one or both directions."""

    input_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    _operator: Any  # of torch

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Compute torch's forward pass, with torch's arguments and results."""
        drops = self._key is not None and self.dropout > 0 and self.num_layers > 1
        if not isinstance(input, Tensor) or not (IN_BATCH_OF_CLIENTS.get() or drops):
            return super().forward(input, hx)
        one_sample = input.dim() == 2
        x = input
        if one_sample:
            x = x[:, None]
        elif self.batch_first:
            x = x.transpose(0, 1)
        first = self._make_first_states(x, hx, one_sample)
        output, last = self._run_layers(x, first)
        if one_sample:
            output = output[:, 0]
            last = [state[:, 0] for state in last]
        elif self.batch_first:
            output = output.transpose(0, 1)
        return output, last[0] if len(last) == 1 else tuple(last)

    def _make_first_states(self, x: Tensor, hx: Any, one_sample: bool) -> list[Tensor]:
        """Return the initial states, [layers · directions, batch, width] each."""
        if hx is None:
            count = self.num_layers * (1 + self.bidirectional)
            return [
                x.new_zeros(count, x.shape[1], width) for width in self._list_widths()
            ]
        given = [hx] if isinstance(hx, Tensor) else list(hx)
        if one_sample:
            return [state[:, None] for state in given]
        return given

    def _run_layers(
        self, x: Tensor, first: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Pass ``x`` [time, batch, …] through all layers, from the ``first`` states.

        Returns:
            The last layer's outputs [time, batch, …], and all layers' last states.
        """
        directions = [False, True] if self.bidirectional else [False]
        last: list[list[Tensor]] = []  # by layer and direction
        for layer in range(self.num_layers):
            if layer:
                x = self._dropout(x, self.dropout)
            outputs = []
            for reverse in directions:
                state = [states[len(last)] for states in first]
                weights = self._list_weights(layer, reverse)
                steps = x.flip(0) if reverse else x
                output, state = self._run_direction(steps, state, weights)
                if reverse:
                    output = output.flip(0)
                last.append(state)
                outputs.append(output)
            x = torch.cat(outputs, dim=2)
        return x, [torch.stack(states) for states in zip(*last, strict=True)]

    def _list_widths(self) -> list[int]:
        """Return the widths of the states."""
        raise NotImplementedError

    def _list_weights(self, layer: int, reverse: bool) -> list[Tensor]:
        """Return the parameters of a layer in one direction, in torch's order."""
        suffix = f"_l{layer}{'_reverse' if reverse else ''}"
        leaves = ["weight_ih", "weight_hh"]
        if self.bias:
            leaves += ["bias_ih", "bias_hh"]
        if getattr(self, "proj_size", 0):
            leaves.append("weight_hr")
        return [getattr(self, leaf + suffix) for leaf in leaves]

    def _run_direction(
        self, x: Tensor, state: list[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Pass ``x`` [time, batch, …] through one layer in one direction.

        Args:
            state: The first states [batch, …].

        Returns:
            The outputs [time, batch, width] and the last states.
        """
        if not IN_BATCH_OF_CLIENTS.get():
            return self._run_fused(x, state, weights)
        weight_ih, weight_hh, *others = weights
        bias_ih, bias_hh = others[:2] if self.bias else (None, None)
        projection = others[-1] if getattr(self, "proj_size", 0) else None
        inputs = functional.linear(x, weight_ih, bias_ih)
        outputs = []
        for step in inputs.unbind():
            hidden = functional.linear(state[0], weight_hh, bias_hh)
            state = self._run_cell(step, hidden, state)
            if projection is not None:
                state = [functional.linear(state[0], projection), *state[1:]]
            outputs.append(state[0])
        return torch.stack(outputs), state

    def _run_fused(
        self, x: Tensor, state: list[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute ``_run_direction`` by torch's operator."""
        first = [part[None].contiguous() for part in state]
        # One layer without dropout, in one direction, and the batch is not first.
        output, *last = self._operator(
            x,
            first if len(first) > 1 else first[0],
            weights,
            self.bias,
            1,
            0.0,
            self.training,
            False,
            False,
        )
        return output, [part[0] for part in last]

    def _run_cell(
        self, input: Tensor, hidden: Tensor, state: list[Tensor]
    ) -> list[Tensor]:
        """Return the next states from both products [batch, gates · width] and the last
        states.
        """
        raise NotImplementedError


class LSTM(_Recurrent, nn.LSTM):
    """torch's LSTM, gates i f g o."""

    _operator = torch.lstm

    def _list_widths(self) -> list[int]:
        return [self.proj_size or self.hidden_size, self.hidden_size]

    def _run_cell(
        self, input: Tensor, hidden: Tensor, state: list[Tensor]
    ) -> list[Tensor]:
        gates = (input + hidden).unflatten(-1, (4, -1))
        opened, forget, _, output = _sigmoid(gates).unbind(-2)
        new = torch.tanh(gates.select(-2, 2))
        cell = forget * state[1] + opened * new
        return [output * torch.tanh(cell), cell]


class GRU(_Recurrent, nn.GRU):
    """torch's GRU, gates r z n."""

    _operator = torch.gru

    def _list_widths(self) -> list[int]:
        return [self.hidden_size]

    def _run_cell(
        self, input: Tensor, hidden: Tensor, state: list[Tensor]
    ) -> list[Tensor]:
        inputs = input.unflatten(-1, (3, -1))
        hiddens = hidden.unflatten(-1, (3, -1))
        reset, update, _ = _sigmoid(inputs + hiddens).unbind(-2)
        of_input, of_hidden = inputs.select(-2, 2), hiddens.select(-2, 2)
        new = torch.tanh(of_input + reset * of_hidden)
        return [new + update * (state[0] - new)]
