"""Losses computed by hand, or for one client after the other."""

from typing import ClassVar

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot


def quadratic(centre=0.0, curvature=1.0):
    """Return the loss ½a‖θ − c‖², independent of the samples."""
    return lambda model, batch, lane: sum(
        curvature / 2 * (p - centre).square().sum() for p in model.parameters()
    )


class Quadratics:
    """Base of methods in which clients minimise (a_i/2)‖θ − c_i‖² from the server's 0."""

    curvatures: ClassVar = (1.0, 1.0)
    centres: ClassVar = (0.0, 0.0)

    def server_state(self, setup):
        state = super().server_state(setup)
        return {**state, "model": torch.zeros_like(state["model"])}

    def loss_variables(self, fleet, inbox):
        ids = torch.from_numpy(fleet.ids)
        return {
            "curvature": torch.tensor(self.curvatures)[ids],
            "centre": torch.tensor(self.centres)[ids],
        }

    def loss(self, model, batch, lane):
        return quadratic(lane.centre, lane.curvature)(model, batch, lane)


def train_samples(fleet, client):
    """Return a client's training samples x and y."""
    samples = fleet.resources.samples
    return samples.take(samples.train[client])


def build_model(setup, row):
    """Return the model of a row [P]."""
    model = setup.build()
    model.load_state_dict(setup.layout.split(row))
    return model


def loss_of(fleet, client, row, part="train"):
    """Return the mean cross-entropy of a model [P] on a part of a client's samples."""
    samples = fleet.resources.samples
    x, y = samples.take(samples.parts[part][client])
    named = fleet.layout.split(row)
    return cross_entropy(functional_call(fleet.resources.kernel.module, named, x), y)


def take_softmax_steps(setup, x, y, rate, steps):
    """Return the row [P] after full-batch gradient descent on softmax regression from
    the initial model, computed in float64: ∇W = (1/N) Σ (p − e_y) xᵀ.
    """
    weight, bias = setup.layout.split(setup.initial().double()).values()
    x = x.double()
    for _ in range(steps):
        p = (x @ weight.T + bias).softmax(dim=1)
        error = (p - one_hot(y, len(bias))) / len(y)
        weight, bias = weight - rate * error.T @ x, bias - rate * error.sum(dim=0)
    return torch.cat([weight.flatten(), bias])
