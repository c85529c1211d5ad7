"""Numbers by hand: the linear classifier on digits has 64·10 + 10 = 650 parameters,
2,600 bytes.
"""

import dataclasses

import pytest
import torch
from playing import prepare_alone, prepare_on, prepare_tiny

from hpcfl.commands import needs
from hpcfl.communication.communicator import OneProcess, Process
from hpcfl.files import scratch
from hpcfl.simulation import dry_round
from hpcfl.storage import manifest

# Metrics in rounds 2, 4, 6, 8, 9 and after the last, of ten clients with ten numbers
# each.
METRICS = 6 * 10 * 10 * 8
# Metrics while they are merged; the first model's row and module; the server's model
# and its copy in the checkpoint, the same model as a message, and the sums of all ranks
# and their mean.
FEDAVG_SERVER = 2 * METRICS + 2 * 2600 + 2 * 2600 + 2600 + 650 * (12 + 4)
# FedAMP's server stores every client's model and a byte that marks uploads, all of it
# twice; it sends each client a separate model, and four clients upload theirs.
FEDAMP_SERVER = 2 * METRICS + 2 * 2600 + 2 * (10 * 2600 + 10) + 10 * 2600 + 4 * 2600


def prepared(method, time=None, memory=8000.0, updates=None, **training):
    given = {"name": method}
    if updates:
        given["weights"] = "uniform"
    table = {
        "rounds": 9,
        "partition": {"scheme": "iid", "clients": 10},
        "model": {"name": "mlp", "hidden": []},
        "method": given,
        "training": training,
        "participation": {"fraction": 0.4},
        "evaluation": {"every": 2},
        "time": time or {},
        "runtime": {"memory": memory},
        **(updates or {}),
    }
    return prepare_alone(table)


def compute(method, **sections):
    return needs.compute_server_needs(prepared(method, **sections))


def test_memory_needs_of_a_single_process():
    job = needs.compute_needs(prepared("fedavg"), OneProcess())
    assert job.ranks == [
        needs.RankNeeds(
            clients=10,
            samples=1797 * (64 + 8),
            client_state=0,
            rows=2 * 4 * 2600,
            lanes=4 * 2 * 2600,
            file=0,
        )
    ]
    assert job.server == needs.ServerNeeds(FEDAVG_SERVER, files=0, state=2600)


def test_the_servers_memory_includes_rows_of_clients():
    assert compute("fedamp").memory == FEDAMP_SERVER


def test_a_message_to_the_cohort_alone_has_fewer_rows():
    """FedAMP sends four models instead of ten; four clients are scored in nine rounds."""
    amp = prepared("fedamp")
    scores = amp.config.evaluation.model_copy(update={"clients": "cohort"})
    config = amp.config.model_copy(update={"evaluation": scores})
    of_cohort = needs.compute_server_needs(dataclasses.replace(amp, config=config))
    metrics = 9 * 4 * 10 * 8
    expected = FEDAMP_SERVER - 2 * METRICS + 2 * metrics - 6 * 2600
    assert of_cohort.memory == expected


def test_copies_of_rows_are_counted():
    """Four clients take part; mixing makes one copy in float64, an attack two copies."""
    median = {"rule": "median"}
    plain = compute("fedavg", updates={"aggregation": median})
    for extra, attack, copies in [
        ({"mixing": "nnm", "f": 1}, None, 4 * 5200),
        ({"mixing": "bucketing", "bucket": 3}, None, 2 * 5200),
        ({}, {"kind": "ipm", "clients": [0]}, 2 * 4 * 2600),
    ]:
        updates = {"aggregation": {**median, **extra}}
        if attack:
            updates["attack"] = attack
        more = compute("fedavg", updates=updates)
        assert more.memory == plain.memory + copies


def test_clients_of_large_models_are_counted_in_a_smaller_federation(monkeypatch):
    """Two clients are simulated, ten are counted. IFCA's server has two models for any
    number of clients, and the cluster of each client.
    """
    whole = prepared("ifca")
    ifca = needs.compute_server_needs(whole)
    gpu = needs.GpuNeeds(10, 1, samples=0, rows=0, lanes=0, locked=0, pool=0)
    job = needs.Needs([needs.compute_rank_needs(whole)], ifca, [gpu])
    shown = needs.describe_needs(whole, job)
    assert "pool of models 5.2 kB on its host" in shown
    monkeypatch.setattr(dry_round, "FLOATS", 2 * 650)
    assert compute("fedamp").memory == FEDAMP_SERVER
    assert compute("fedavg").memory == FEDAVG_SERVER
    assert compute("ifca") == ifca


def test_private_state_and_the_optimisers():
    assert needs.compute_rank_needs(prepared("local")).client_state == 10 * 2600
    assert (
        needs.compute_rank_needs(prepared("fedavg", momentum=0.9)).lanes == 4 * 3 * 2600
    )
    assert (
        needs.compute_rank_needs(prepared("fedavg", optimizer="adam")).lanes
        == 4 * 4 * 2600
    )


def test_frozen_parameters_count_once_and_in_no_row():
    """LoRA by hand: 68 floats are trained, 5·6 + 6 + 6·5 + 5 = 71 frozen."""
    found = prepare_tiny("fedavg", model={"name": "tiny:lora"})
    of_rank = needs.compute_rank_needs(found)
    assert of_rank.rows == 2 * 5 * 4 * 68
    assert of_rank.lanes == 5 * 2 * 4 * 68 + 4 * 71
    text = needs.describe_parameters(found.setup.layout)
    assert text.startswith("68 ") and " 71 " in text


def test_the_disk_holds_checkpoints_and_metrics():
    local = prepared("local")
    server = needs.compute_server_needs(local)
    assert needs.count_checkpoint_bytes(local, server) == 10 * 2600
    assert needs.count_metrics_bytes(local) == METRICS


def test_the_server_needs_files_beyond_its_memory(monkeypatch):
    """This concerns state, copy and messages; a large state is also encoded in a file."""
    little = prepared("fedamp", memory=0.01)
    held, state = FEDAMP_SERVER - 2 * METRICS - 2 * 2600, 10 * 2600 + 10
    assert needs.compute_server_needs(little).files == held - 10_000
    monkeypatch.setattr(scratch, "LARGE", state - 1)
    assert needs.compute_server_needs(little).files == held - 10_000 + state


def test_computing_needs_makes_no_server_state():
    large = prepared("fedamp")
    needs.compute_needs(large, OneProcess())
    assert "initial_server_state" not in vars(large)
    assert large.initial_server_state and "initial_server_state" in vars(large)


def test_sizes_are_formatted_with_three_digits():
    assert [needs.format_size(size) for size in (999, 1500, 2_340_000, 5e12)] == [
        "999 B",
        "1.5 kB",
        "2.34 MB",
        "5 TB",
    ]


def test_memory_for_updates_in_flight_is_forecast():
    """Five clients train, and the updates of five others are in flight. The server has
    an older model for each training client, and so do checkpoints.
    """
    waits, races = (
        prepared("fedavg"),
        prepared("fedavg", time={"mode": "asynchronous", "concurrency": 5}),
    )
    assert needs.count_kept_bytes(waits) == 0
    assert needs.count_kept_bytes(races) == 5 * 2600
    before, after = (needs.compute_server_needs(one).state for one in (waits, races))
    assert after - before == 5 * 2600
    most = min(10, 5 + races.config.participation.count(10))
    assert needs.compute_rank_needs(races).rows == most * (3 * 2600) + 5 * 2600


def test_files_of_a_checkpoint_are_counted(monkeypatch):
    """Ten clients of 2,600 bytes, at most four of them per file."""
    monkeypatch.setattr(manifest, "FILE_CLIENTS", 4)
    local = prepared("local")
    assert needs.count_checkpoint_files(local, workers=1) == 1 + 3
    assert needs.count_checkpoint_files(local, workers=3) == 1 + 5
    assert needs.count_checkpoint_files(local, workers=30) == 1 + 10
    assert needs.count_checkpoint_files(prepared("fedavg"), workers=3) == 1


def test_a_file_of_clients_needs_memory(monkeypatch):
    """Two copies of the state of four of the ten clients; large copies are in files."""
    monkeypatch.setattr(manifest, "FILE_CLIENTS", 4)
    local = prepared("local")
    job = needs.compute_needs(local, OneProcess())
    [rank] = job.ranks
    assert rank.file == 2 * 4 * 2600
    assert needs.count_file_bytes(local, job, 0) == 0
    in_memory = needs.describe_needs(local, job)
    monkeypatch.setattr(scratch, "LARGE", 2600)
    assert needs.count_file_bytes(local, job, 0) == 2 * 4 * 2600
    assert needs.describe_needs(local, job) != in_memory


def test_large_tensors_of_the_server_are_written_by_all_ranks():
    """Ten models of 1 MiB: two per file of 2 MiB, so five files, which three ranks
    write.
    """
    model = 1 << 20
    shape = [10, model // 4]
    assert needs.make_parts(prepared("local").config, shape, torch.float32) == []
    local = prepared("local", updates={"checkpoint": {"file_size": 2}})
    parts = needs.make_parts(local.config, shape, torch.float32)
    assert [part.rows for part in parts] == [2] * 5
    worker = needs.compute_rank_needs(local)
    server = needs.ServerNeeds(0, 0, 10 * model + 7, parts=10 * model, part_files=5)
    idle = dataclasses.replace(worker, clients=0)
    job = needs.Needs([idle, worker, worker, worker], server)
    table = needs.describe_needs(local, job).splitlines()
    assert [line.split()[12:14] for line in table[3:6]] == [["3.5", "MB"]] * 3
    # the server's file, its five parts, and one file of ten small clients on a rank
    assert any(" 7 files" in line for line in table)


def test_rank_0_encodes_parts_if_it_is_alone(monkeypatch):
    """FedAMP's models in a file are then the largest file, otherwise ten bytes."""
    monkeypatch.setattr(
        needs.server_state, "is_large", lambda shape, *sizes: len(shape) > 1
    )
    monkeypatch.setattr(scratch, "LARGE", 2600)
    amp = prepared("fedamp")
    server = needs.compute_server_needs(amp)
    assert (server.parts, server.part_files) == (10 * 2600, 1)
    held = FEDAMP_SERVER - 2 * METRICS - 2 * 2600
    little = prepared("fedamp", memory=0.01)
    assert needs.compute_server_needs(little).files == held - 10_000 + 10 * 2600
    placed = dataclasses.replace(little.placement, size=3)
    among_others = dataclasses.replace(little, placement=placed)
    assert needs.compute_server_needs(among_others).files == held - 10_000


@pytest.mark.slow
def test_one_rank_forecasts_the_needs_of_all():
    """Ranks have equal numbers of steps, and rank 1 has the fewest clients."""
    table = {
        "partition": {"scheme": "quantity", "law": "power", "clients": 30},
        "model": {"name": "mlp", "hidden": []},
        "method": {"name": "ditto"},
    }
    ranks = [prepare_on(Process(rank, 5), table) for rank in range(5)]
    found = needs.forecast_rank_needs(ranks[1])
    assert found == [needs.compute_rank_needs(one) for one in ranks]
    assert max(one.rows for one in found) > 2 * found[1].rows


def test_files_of_other_ranks_are_named():
    """A worker has ten clients of 2,600 bytes, and 15 kB of the server's 30 kB."""
    local = prepared("local", memory=0.01)
    worker = needs.compute_rank_needs(local)
    idle = dataclasses.replace(worker, clients=0)
    server = needs.ServerNeeds(0, 500, 30_000, parts=30_000, part_files=2)
    job = needs.Needs([idle, worker, idle], server)
    files = [needs.count_file_bytes(local, job, rank) for rank in range(3)]
    assert files == [500, 16_000 + 5_000, 5_000]
    text = needs.describe_needs(local, job)
    assert "$TMPDIR of rank 0: 500 B and up to 21 kB of another rank" in text
