"""Figure of clients' gains."""

import numpy as np
from refusals import expect_refusal

from hpcfl.report.plots import gains
from hpcfl.report.sheet import Sheet


def test_gains_are_client_by_client_in_the_seeds_that_both_have(made_runs):
    """fedavg's seeds are 0 and 0.1 above ``OWN``, local's first 0.1; its second is
    missing.
    """
    sheet = Sheet(7)
    found = made_runs(fedavg=[0.0, 0.1], local=[0.1])
    place = gains.plugin(found, sheet).axes[0]
    assert [label.get_text() for label in place.get_yticklabels()] == ["fedavg"]
    dots = place.collections[0].get_offsets()[:, 0]
    np.testing.assert_allclose(dots, [-10, -10, -10], rtol=1e-12)
    assert "gain in accuracy over local (points)" in place.get_xlabel()
    with expect_refusal(r"--against ditto: .*local, fedavg"):
        gains.plugin(found, sheet, against="ditto")
    alone = [run for run in found if run.config["method"]["name"] == "local"]
    with expect_refusal("--against local: "):
        gains.plugin(alone, sheet)


def test_rows_without_a_run_of_the_reference_are_named(made_runs):
    """FedProx has seed 1 only in a panel of its own, where local has no run."""
    sheet = Sheet(7)
    found = made_runs(fedavg=[0.0], local=[0.1])
    elsewhere = made_runs(keys={"data": {"dataset": "mnist"}}, fedprox=[0.2])
    gains.plugin([*found, *elsewhere], sheet)
    assert any("fedprox: left out" in note for note in sheet.notes)


def test_a_reference_named_by_its_first_word_is_not_left_out(made_runs):
    sheet = Sheet(7)
    found = made_runs(fedavg=[0.0], local=[0.1])
    gains.plugin(found, sheet, group=["method.name", "training.lr"])
    assert not any("left out" in note for note in sheet.notes)


def test_clients_of_other_partition_files_are_not_paired(made_runs):
    found = made_runs(fedavg=[0.0], local=[0.1])
    for number, one in enumerate(found):
        one.config["partition"]["file"] = f"{number}.h5"
        one.results.static["test_counts"] = np.full((3, 2), 5 + number)
    with expect_refusal("--against local: "):
        gains.plugin(found, Sheet(7))
