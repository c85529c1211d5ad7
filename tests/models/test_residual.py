"""Residual networks."""

import torch
from torch.nn.functional import relu

from hpcfl.models.residual import BasicBlock


def test_a_block_adds_its_input():
    block, x = BasicBlock(2, 2, 1, "none"), torch.randn(3, 2, 5, 5)
    inner = block.conv2(relu(block.conv1(x)))
    assert torch.equal(block(x), relu(inner + x))


def test_a_shortcut_is_a_convolution_where_shapes_differ():
    block, x = BasicBlock(2, 4, 2, "batch"), torch.randn(3, 2, 6, 6)
    inner = block.norm2(block.conv2(relu(block.norm1(block.conv1(x)))))
    torch.testing.assert_close(block(x), relu(inner + block.shortcut(x)))
    assert block.shortcut[0].kernel_size == (1, 1)
