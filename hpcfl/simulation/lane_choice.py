"""Choice of the number of lanes on a GPU, and of the form of their convolutions.

It follows from the experiment, the GPU and a recorded table of times, never from a
timing in the run.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.clients.lane_memory import count_lanes, fit_clients
from hpcfl.clients.resources import LaneChoice
from hpcfl.communication.exchange import Placement
from hpcfl.experiment.config import Config
from hpcfl.experiment.sections import PRECISIONS, LaneRow
from hpcfl.models.layer_replacements import has_convolutions
from hpcfl.storage import provenance

# Maximum number of lanes of a model with convolutions on a GPU without a measured
# table: with more lanes a grouped convolution may be slower than one per lane.
UNMEASURED = 8


def fit_lanes(
    config: Config,
    asked: LaneChoice,
    module: nn.Module,
    sample: Tensor,
    memory: float,
    private: int,
    placed: Placement,
) -> LaneChoice:
    """Return the choice of lanes of a rank on a GPU, and of clients that fit there.

    Args:
        config: configuration of the experiment.
        asked: lanes requested by the experiment.
        module: model of one client.
        sample: normalised sample, ``[1, *shape]``, on the GPU.
        memory: bytes of the GPU for this rank, without the samples.
        private: bytes of a client's private state.
        placed: rank of each client.
    """
    module = module.to(sample.device)
    hosted = int(np.bincount(placed.owner[: config.partition.clients]).max())
    most_clients = fit_clients(module, memory, private, hosted)
    if asked.models != "auto":
        return replace(asked, clients_on_device=most_clients)
    fits = count_lanes(
        module=module,
        samples=sample,
        training=config.training,
        memory=memory,
        private=private,
        clients=min(most_clients, count_concurrent(config, hosted)),
        computes_sample_gradients=config.hides_samples,
    )
    choice = choose_lanes(config, sample.device, module, fits)
    return replace(choice, clients_on_device=most_clients)


def count_concurrent(config: Config, hosted: int) -> int:
    """Return the maximum number of clients that train at the same time on a rank.

    Args:
        config: configuration of the experiment.
        hosted: number of clients on the rank.
    """
    cohort = config.participation.count(config.partition.clients)
    if config.time.mode == "asynchronous":
        cohort = config.time.concurrency or cohort
    return min(hosted, cohort)


def choose_lanes(
    config: Config, device: torch.device, module: nn.Module, fits: int
) -> LaneChoice:
    """Return the choice of lanes for ``runtime.lanes = "auto"`` on a GPU.

    Args:
        config: configuration of the experiment.
        device: GPU.
        module: model of one client.
        fits: number of lanes that fit into the GPU's memory.
    """
    notes = list[str]()
    form = config.runtime.form
    row = find_row(config, device, fits, notes)
    if row is not None:
        return LaneChoice(row.lanes, fits, row.form, notes)
    if not has_convolutions(module):
        return LaneChoice(fits, fits, form, notes)
    notes.append(
        f"at most {UNMEASURED} clients with convolutions train side by side on this GPU, "
        "because no measurement applies; tests/benchmarks/gpu.sh writes runtime.lane_table"
    )
    return LaneChoice(min(fits, UNMEASURED), fits, form, notes)


def find_row(
    config: Config, device: torch.device, fits: int, notes: list[str]
) -> LaneRow | None:
    """Return the row of ``runtime.lane_table`` to use, or None and add a note.

    Args:
        config: configuration of the experiment.
        device: GPU.
        fits: number of lanes that fit into the GPU's memory.
        notes: list to which the note is added.
    """
    runtime = config.runtime
    table = runtime.lane_table
    if table is None:
        return None
    here = torch.cuda.get_device_name(device)
    if table.device != here:
        notes.append(
            f"runtime.lane_table: measured on {table.device}, but this GPU is {here}; it "
            "is not used"
        )
        return None
    form = None if runtime.convolutions == "auto" else runtime.convolutions
    row = table.find_fastest(fits, form)
    if row is None:
        notes.append(
            f"runtime.lane_table: has no row for '{config.model.name}' in "
            f"{PRECISIONS[runtime.precision]} with at most {fits} lanes"
        )
        return None
    version = provenance.collect_versions()["torch"]
    if table.torch != version:
        notes.append(
            f"runtime.lane_table: measured with torch {table.torch}, but this is {version}"
        )
    return row
