"""Steps and predictions of many client models at once, in one of two kernels.

This is all that others use: ``choose`` gives a kernel, a ``Session`` of it computes the
gradients of some lanes (``Session.gradients``), and its ``predict`` predicts;
``is_batching_limit`` recognises the errors of a model that only one client can run.

Both kernels give the same numbers up to rounding: ``SerialKernel`` is the reference,
``BatchedKernel`` the faster one for small models and on GPUs. Which it is follows from
a fixed rule, never from a timing, because they differ in the last bits.
"""

import torch
from torch import nn

from hpcfl.clients.execution.batched import BatchedKernel
from hpcfl.clients.execution.kernel import (
    NO_SAMPLE,
    PIECE,
    Kernel,
    Keys,
    SerialKernel,
    Session,
    Work,
    is_batching_limit,
    is_full,
)
from hpcfl.clients.execution.lane_independence import OperatorObserver
from hpcfl.experiment.sections import Form
from hpcfl.models.replaced import has_convolutions, has_recurrent_layers

# Bytes of models and their gradients side by side: about what a CPU's core has of its
# caches, and enough lanes that their arithmetic outweighs the calls of a step.
CACHE = 6 << 20


def choose(
    module: nn.Module,
    device: torch.device,
    lanes: int | str,
    replay: bool = True,
    most: int | None = None,
    of_samples: bool = False,
    form: Form = "grouped",
) -> Kernel:
    """Return the kernel for a model on a device.

    lanes: the most lanes side by side; 1 is serial. ``"auto"`` on a CPU stacks models
        without convolutions, as many as stay in its cache and two at least: batched
        matrix products are by far faster for small dense models. What would give a lane
        other bits beside other lanes is done for one lane after the other there
        (``lane_independence.py``), whereas a number is obeyed. It runs models with convolutions
        serially, because channels-last convolutions are faster than any batched form, and
        recurrent ones, because torch's own operator for a sequence is.
        On a GPU it stacks all models; ``resources.count_lanes`` says how many fit.
    replay: as for ``GraphKernel``.
    most: the lanes of ``"auto"``, if not those of the rule.
    of_samples: whether gradients of samples are taken (``Work.clip``), which the serial
        kernel cannot do.
    form: of a convolution over lanes, other than of gradients of samples.
    """
    widest = (most or by_rule(module, device)) if lanes == "auto" else int(lanes)
    if widest == 1 and not of_samples:
        return SerialKernel(module)
    if device.type == "cpu":
        return BatchedKernel(module, widest, form, keeps_bits=lanes == "auto")
    from hpcfl.clients.execution.cuda_graphs import GraphKernel

    return GraphKernel(module, widest, form, replay and not of_samples)


def by_rule(module: nn.Module, device: torch.device) -> int:
    """Return the number of lanes that ``"auto"`` stands for (see ``choose``): on a CPU as
    many models as its cache holds with their gradients, at least two.
    """
    if device.type != "cpu":
        return 1 << 30
    if has_convolutions(module) or has_recurrent_layers(module):
        return 1
    size = sum(parameter.nbytes for parameter in module.parameters())
    return max(2, CACHE // max(1, 2 * size))


__all__ = [
    "NO_SAMPLE",
    "PIECE",
    "BatchedKernel",
    "Kernel",
    "Keys",
    "OperatorObserver",
    "SerialKernel",
    "Session",
    "Work",
    "choose",
    "is_batching_limit",
    "is_full",
]
