"""Local: methods-1.md §4.1."""

import numpy as np

from hpcfl.methods.local import Local


def softmax_step(x, y, weight, bias, lr, steps):
    """Return the result of full-batch gradient descent on softmax regression, computed
    in float64: ∇W = (1/N) Σ (p − e_y) xᵀ.
    """
    for _ in range(steps):
        logits = x @ weight.T + bias
        error = np.exp(logits - logits.max(1, keepdims=True))
        error /= error.sum(1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
        weight, bias = weight - lr * error.T @ x / len(y), bias - lr * error.mean(0)
    return weight, bias


def test_trains_by_plain_gradient_descent(federate):
    played = federate(
        "local", model={"hidden": []}, training={"batch_size": 100, "lr": 0.2}, rounds=4
    )
    samples, layout = played.prepared.resources.samples, played.prepared.setup.layout
    start = layout.split(played.prepared.setup.initial())
    ended = layout.split(played.clients["model"])
    for client in range(5):
        x, y = samples.take(samples.train[client])
        weight, bias = softmax_step(
            x.double().numpy(),
            y.numpy(),
            start["head.weight"].double().numpy(),
            start["head.bias"].double().numpy(),
            0.2,
            4,
        )
        np.testing.assert_allclose(ended["head.weight"][client], weight, atol=1e-6)
        np.testing.assert_allclose(ended["head.bias"][client], bias, atol=1e-6)


def test_sends_nothing_and_is_scored_after_training(federate):
    played = federate("local")
    assert Local.primary == "post"
    assert played.server == {}
    # a round starts from the result of the previous one
    assert np.array_equal(
        played.values["clients/post/loss"][:-1], played.values["clients/pre/loss"][1:]
    )
