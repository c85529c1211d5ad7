"""Clients of one rank: the ``Fleet``, which a method trains and scores."""

from hpcfl.clients.fleet import Fleet, TrainOptions, buffer_name
from hpcfl.clients.losses import default_prediction, evaluate_at
from hpcfl.clients.step_context import StepContext
from hpcfl.communication.message import Pool

__all__ = [
    "Fleet",
    "Pool",
    "StepContext",
    "TrainOptions",
    "buffer_name",
    "default_prediction",
    "evaluate_at",
]
