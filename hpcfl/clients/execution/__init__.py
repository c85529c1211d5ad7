"""Training steps and predictions of many client models at once, by one of two kernels.

A *lane* is the place of one client in a chunk: among the L clients that a kernel trains
or scores side by side. Row l of a tensor ``[L, …]`` belongs to lane l. A call computes
some of the lanes, and its tensors ``[a, …]`` have a row for each of these ``a`` lanes.
``losses.Lanes`` selects them, and ``losses.Lane`` holds the variables of one lane.

Modules outside import only from here. ``choose_kernel`` returns a ``Kernel``. Its
``predict`` returns predictions; a ``Session`` of it computes gradients, one mini-batch
after another.

Both kernels give the same numbers up to rounding: ``SerialKernel`` is the reference,
``BatchedKernel`` is faster for small models, and as ``GraphKernel`` on GPUs. Their last
bits differ, so the choice follows a fixed rule and never a timing.
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
from hpcfl.experiment.sections import Form, MostLanes
from hpcfl.models.layer_replacements import has_convolutions, has_recurrent_layers

# Bytes of models and their gradients side by side: about a CPU core's share of the
# caches. The lanes are enough for arithmetic to outweigh the call overhead of a step.
CACHE = 6 << 20


def choose_kernel(
    module: nn.Module,
    device: torch.device,
    most_lanes: MostLanes,
    replay: bool = True,
    by_rule: int | None = None,
    computes_sample_gradients: bool = False,
    form: Form = "grouped",
) -> Kernel:
    """Return the kernel for a model on a device.

    ``"auto"`` on a CPU stacks dense models, because batched matrix products are much
    faster for small ones: at least two, and as many as fit into the cache. Operators
    that would give a lane different bits depending on other lanes run for one lane at a
    time (``lane_independence.py``). Models with convolutions run serially, because
    channels-last convolutions are faster than any batched form. Models with recurrent
    layers do too, because torch's operator for a whole sequence is faster. On a GPU
    ``"auto"`` stacks all models; ``lane_memory.count_lanes`` gives the number that fits.

    Args:
        module: model of one client.
        device: device of the model.
        most_lanes: maximum number of lanes, or ``"auto"``. 1 is serial. With a number,
            all operators are batched.
        replay: as for ``GraphKernel``.
        by_rule: maximum for ``"auto"``; by default that of ``count_by_rule``.
        computes_sample_gradients: whether per-sample gradients are computed (``Work.clip``), which the
            serial kernel does not support.
        form: form of a convolution over lanes, except for per-sample gradients.
    """
    widest = most_lanes
    if widest == "auto":
        widest = by_rule or count_by_rule(module, device)
    if widest == 1 and not computes_sample_gradients:
        return SerialKernel(module)
    if device.type == "cpu":
        return BatchedKernel(module, widest, form, keeps_bits=most_lanes == "auto")
    from hpcfl.clients.execution.cuda_graphs import GraphKernel

    return GraphKernel(module, widest, form, replay and not computes_sample_gradients)


def count_by_rule(module: nn.Module, device: torch.device) -> int:
    """Return the maximum number of lanes for ``"auto"`` (see ``choose_kernel``).

    On a CPU it is the number of models that fit into the cache with their gradients, at
    least two; one for models with convolutions or recurrent layers.
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
    "choose_kernel",
    "is_batching_limit",
    "is_full",
]
