"""Clients of one rank: the ``Fleet``, which a method trains and scores."""

from hpcfl.clients.fleet import Fleet, TrainOptions, name_buffers
from hpcfl.clients.losses import default_prediction, evaluate_at
from hpcfl.clients.step_context import StepContext
from hpcfl.communication.message import Pool

__all__ = [
    "Fleet",
    "Pool",
    "StepContext",
    "TrainOptions",
    "default_prediction",
    "evaluate_at",
    "name_buffers",
]
