"""Other models inside losses: their values, layout, gradients and modes."""

import pytest
import torch
from torch import nn

from hpcfl.clients import evaluate_at


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)
    )


def row_of(model):
    parts = [parameter.detach().reshape(-1) for parameter in model.parameters()]
    return torch.cat(parts)


def lay_channels_last(model):
    return model.to(memory_format=torch.channels_last)


def test_another_model_has_the_values_of_its_row():
    model, other, x = build(), build(), torch.randn(3, 8, 4, 4)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 1
    found = evaluate_at(model, row_of(other), lambda one: one(x))
    torch.testing.assert_close(found, other.eval()(x))


def test_another_model_is_laid_out_in_memory_as_the_trained_one():
    plain, last = build(), lay_channels_last(build())
    row, x = row_of(plain), torch.randn(3, 8, 4, 4)
    x_last = x.contiguous(memory_format=torch.channels_last)
    strides = evaluate_at(last, row, lambda one: torch.tensor(one[0].weight.stride()))
    assert tuple(strides) == last[0].weight.stride() != plain[0].weight.stride()
    found = evaluate_at(last, row, lambda one: one(x_last))
    expected = evaluate_at(plain, row, lambda one: one(x))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("layout", [build, lambda: lay_channels_last(build())])
def test_a_gradient_reaches_the_row(layout):
    model, x = layout(), torch.randn(3, 8, 4, 4)
    row = row_of(model).requires_grad_()
    evaluate_at(model, row, lambda one: one(x).square().sum()).backward()
    model.eval()(x).square().sum().backward()
    gradients = [parameter.grad.reshape(-1) for parameter in model.parameters()]
    torch.testing.assert_close(row.grad, torch.cat(gradients))


def test_another_model_is_evaluated_and_the_modes_stay():
    model = build().train()
    model[1].eval()
    modes = [part.training for part in model.modules()]
    assert not evaluate_at(
        model, row_of(model), lambda one: torch.tensor(one[3].training)
    )
    assert [part.training for part in model.modules()] == modes


def test_another_model_may_have_separate_statistics():
    model, x = build(), torch.randn(3, 8, 4, 4)
    other = build()
    other[1].running_mean += 1
    statistics = torch.cat([buffer.reshape(-1) for buffer in other.buffers()])
    found = evaluate_at(model, row_of(model), lambda one: one(x), statistics)
    torch.testing.assert_close(found, other.eval()(x))


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"3 numbers.* 334"):
        evaluate_at(build(), torch.zeros(3), lambda one: one)
