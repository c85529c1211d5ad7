"""The same bits for any number of ranks, and after a resume on others, with ranks as
threads of this process. ``mpi/test_ranks.py`` uses real ranks, and ``test_digests.py``
runs every method on three.
"""

import pytest
import tiny
from every_method import short
from in_threads import on_ranks
from playing import play_on
from recorded import assert_alike

from hpcfl.errors import RunFailure

# a rank has one of the five clients, or none
RANKS = 7


def play_on_ranks(ranks, folder, table):
    return on_ranks(ranks, lambda communicator: play_on(communicator, folder, table))


def is_the_same_on_ranks_and_resumed(
    folder, method, resumed, *counts, rounds=2, ranks=RANKS, **sections
):
    """Assert the same results in one process, on more ranks than clients, and after a
    kill in the last round and a resume on ``resumed`` ranks.
    """
    checkpoint = {"every": 1}
    table = tiny.table(
        method, *counts, rounds=rounds, checkpoint=checkpoint, **sections
    )
    plain = play_on_ranks(1, folder / "1", table)
    spread = play_on_ranks(ranks, folder / "ranks", table)
    same(plain, spread)
    # as if killed before it was written
    manifest = f"manifest-{rounds:08d}.json"
    (folder / "ranks" / "checkpoints" / manifest).unlink()
    same(
        plain, play_on_ranks(resumed, folder / "ranks", table), slice(rounds - 1, None)
    )


def same(plain, other, rounds=slice(None)):
    """Assert that state and metrics of these rounds are equal, except times and bytes."""
    assert other.digest == plain.digest
    assert_alike(plain.values, other.values, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", tiny.LAYERED)
def test_every_kind_of_layer_has_the_same_bits_on_any_ranks(tmp_path, kind):
    sections = {
        "model": {"name": "tiny:layered", "kind": kind},
        "training": {"batch_size": 5},
    }
    is_the_same_on_ranks_and_resumed(tmp_path, "fedavg", 3, **sections)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "apfl"])
def test_frozen_parameters_have_the_same_bits_on_any_ranks(tmp_path, method):
    sections = {"model": {"name": "tiny:lora"}, "participation": {"fraction": 0.5}}
    is_the_same_on_ranks_and_resumed(tmp_path, short(method), 2, **sections)


# an asynchronous server, clients selected by their losses, and clients with shifted
# data, which drift in the repeated round
SECTIONS = {
    "ditto": {
        "time": {
            "mode": "asynchronous",
            "concurrency": 6,
            "buffer": 2,
            "sigma": 1.0,
        },
    },
    "fedper": {
        "participation": {"select": "oort", "explore": 0.5, "fraction": 0.5},
        "time": {"mode": "synchronous", "over_selection": 1.5, "availability": "day"},
    },
    "ifca": {
        "newcomers": {"clients": 3},
        "shift": [
            {"kind": "corruption", "severity": "random", "groups": "clients"},
            {
                "kind": "rotation",
                "angles": [0, 90],
                "at": [5],
                "gradual": 2,
                "who": 0.5,
            },
            {"kind": "labels", "groups": 3, "assign": "random"},
        ],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("method", SECTIONS)
def test_other_sections_have_the_same_bits_on_any_ranks(tmp_path, method):
    counts = [[3 + client % 5, 2, client % 3, 4] for client in range(12)]
    sections = {"data": {"dataset": "digits"}, **SECTIONS[method]}
    is_the_same_on_ranks_and_resumed(
        tmp_path, method, 2, counts, rounds=6, ranks=4, **sections
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["cwfedavg", "diversifed", "fedfomo", "fedcac", "cfl", "apple"]
)
def test_matrices_in_files_have_the_same_bits_on_any_ranks(tmp_path, method):
    """The bits also equal those with matrices in memory."""
    fraction = {"fraction": 1.0 if method == "apple" else 0.5}
    table = tiny.table(short(method), participation=fraction)
    plain = play_on_ranks(1, tmp_path / "1", table)
    table["runtime"] = {"memory": 1e-6}
    same(plain, play_on_ranks(3, tmp_path / "3", table))


@pytest.mark.slow
def test_an_excluded_client_counts_in_no_mean(tmp_path):
    """This also holds for means that ranks add up, if a rank has no remaining client."""
    diverges = {
        "name": "tiny:Diverges",
        "client": 3,
        "since": 2,
    }
    table = tiny.table(diverges, training={"on_divergence": "exclude"})
    alone = play_on_ranks(1, tmp_path / "1", table)
    for ranks in (3, 6):
        same(alone, play_on_ranks(ranks, tmp_path / str(ranks), table))


def test_a_failing_rank_does_not_block_the_others(tmp_path):
    with pytest.raises(RunFailure, match="client 3 diverged"):
        play_on_ranks(3, tmp_path, tiny.table({"name": "tiny:Diverges", "client": 3}))


@pytest.mark.slow
def test_several_threads_give_the_same_bits_with_a_client_alone_on_its_rank(tmp_path):
    """torch's threads add up pieces of a single row longer than 32,768."""
    table = tiny.table(
        "apfl",
        tiny.COUNTS[:3],
        rounds=2,
        data={"dataset": "tiny:blobs"},
        model={"name": "mlp", "hidden": [4000]},
        runtime={"threads": 2},
    )
    together, apart = (
        play_on_ranks(ranks, tmp_path / str(ranks), table) for ranks in (2, 4)
    )
    assert together.prepared.setup.layout.width > 32_768
    assert together.digest == apart.digest
