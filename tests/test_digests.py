"""Every method ends with the digest in ``digests.json``, also with lanes, ranks and
options that must not change a bit. The tests run one case of each method, with partial
participation if the method supports it; ``python tests/digests.py`` compares all cases.
"""

import json
from functools import partial

import digests
import numpy as np
import pytest
import tiny
from every_method import of_each_family
from in_threads import on_ranks
from playing import play, play_on
from recorded import assert_alike

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import plugins
from hpcfl.simulation import prepare

KEPT = json.loads(digests.KEPT.read_text(encoding="utf-8"))


def case_of(method):
    return method, "uneven", 1.0 if method == "apple" else 0.5


@pytest.fixture(scope="module", params=plugins.list_names("hpcfl.methods"))
def played(request, tmp_path_factory):
    """Return a method's case and its result, for all tests of this file."""
    case = case_of(request.param)
    method, counts, sections = digests.arguments_of(case)
    return case, play(tmp_path_factory.mktemp("run"), method, counts, **sections)


def test_every_case_has_a_digest():
    """``python tests/digests.py --add`` writes the digests of a new method."""
    assert set(KEPT["digests"]) == set(map(digests.name_of, digests.cases()))


@pytest.mark.slow
@pytest.mark.skipif(
    digests.platform_of_digests() not in KEPT["platforms"],
    reason="the last bits are those of another processor or torch",
)
def test_a_method_ends_with_its_stored_digest(played):
    case, plain = played
    assert plain.digest == KEPT["digests"][digests.name_of(case)]


@pytest.mark.slow
def test_a_federation_in_one_process_ends_as_a_run_does(tmp_path):
    """``python tests/digests.py`` runs federations in one process."""
    case = case_of("ditto")
    digest = digests.digest_of(case, tmp_path / "run", OneProcess())
    method, counts, sections = digests.arguments_of(case)
    assert play(tmp_path / "played", method, counts, **sections).digest == digest


@pytest.mark.slow
@pytest.mark.parametrize("played", of_each_family(), indirect=True)
def test_scores_after_tuning_change_no_bit(played, federate):
    """All clients are scored after no epoch and after one epoch of tuning, in the last
    round and after it. The state and all other metrics do not change.
    """
    (method, counts, sections), plain = digests.arguments_of(played[0]), played[1]
    evaluation = {"every": 3, "tune_epochs": [0, 1]}
    changed = federate(method, counts, **sections, evaluation=evaluation)
    assert changed.digest == plain.digest
    for number, values in plain.values.items():
        timed = number.startswith("seconds")
        if not timed and "sample_gradients" not in number:
            np.testing.assert_array_equal(
                changed.values[number][-2:], values[-2:], number
            )
    for column in ("tuned_0", "tuned_1"):
        assert (changed.values[f"{column}/clients"][-2:] == len(counts)).all()
    # ``pre`` is named tuned_0
    np.testing.assert_array_equal(
        changed.values["clients/tuned_0/loss"][-2:],
        plain.values["clients/pre/loss"][-2:],
    )
    more = (
        changed.values["clients/sample_gradients"]
        - plain.values["clients/sample_gradients"]
    )
    samples = plain.prepared.setup.samples.numpy()
    assert (more[-1] == samples).all()


@pytest.mark.slow
def test_ranks_lanes_and_a_resume_in_groups_change_no_bit(
    played, tmp_path, monkeypatch
):
    """The ranks are threads; ``mpi/test_ranks.py`` uses real ranks. A client that would
    train together with all others trains with one other. The resume runs on one rank,
    in groups as on a device with memory for the rows of one client.
    """
    (method, counts, sections), plain = digests.arguments_of(played[0]), played[1]
    changes = {"checkpoint": {"every": 1, "keep": 3}, "runtime": {"lanes": 2}}
    table = tiny.table(method, counts, **sections, **changes)
    ranks = on_ranks(3, lambda rank: play_on(rank, tmp_path, table))
    assert ranks.digest == plain.digest
    assert_alike(plain.values, ranks.values)
    # as if killed before they were written
    for round in (2, 3):
        (tmp_path / "checkpoints" / f"manifest-{round:08}.json").unlink()
    one = partial(prepare.LaneChoice, clients_on_device=1)
    monkeypatch.setattr(prepare, "LaneChoice", one)
    resumed = play_on(OneProcess(), tmp_path, table)
    assert resumed.prepared.resources.clients_on_device == 1
    assert resumed.digest == plain.digest
    assert_alike(plain.values, resumed.values, slice(1, None))


@pytest.mark.slow
def test_columns_contain_the_scored_clients(played):
    """``pre`` contains every scored client, also after the last round; ``post``
    contains the clients that trained in the round.
    """
    case, plain = played
    values = plain.values
    trained = np.isfinite(values["clients/diverged"])
    assert trained[:-1].any() and not trained[-1].any()
    assert trained[:-1].all() == (case[2] == 1.0)
    losses = {
        key.split("/")[1]: value
        for key, value in values.items()
        if key.startswith("clients/") and key.endswith("/loss")
    }
    counted = {column: np.isfinite(loss) for column, loss in losses.items()}
    assert counted.pop("pre").all()
    np.testing.assert_array_equal(counted.pop("post"), trained)
    for column, who in counted.items():
        if column == "tuned":
            assert who[-1].all() and not who[:-1].any()
        else:
            everyone = column in ("global", "average")
            np.testing.assert_array_equal(
                who, np.ones_like(who) if everyone else trained
            )
