"""LSTM for characters."""

import math

import torch

from hpcfl.models.char_lstm import plugin


def test_the_head_reads_the_last_output():
    """One cell with open gates and the input tanh(0.1) at each of T positions: its
    state is T·tanh(0.1), and its output tanh of this.
    """
    model = plugin((3,), 1, vocabulary=20, width=1, hidden=1, depth=1)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    gates = torch.tensor([50.0, 50.0, 0.1, 50.0])  # input, forget, new, output
    model.lstm.bias_ih_l0.data = gates
    model.head.weight.data.fill_(2.0)
    for places in (1, 3):
        logits = model(torch.zeros(1, places, dtype=torch.long))
        expected = 2 * math.tanh(places * math.tanh(0.1))
        assert abs(logits.item() - expected) < 1e-6
