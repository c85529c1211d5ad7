"""Data of all clients before round 1."""

import pytest
from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.experiment import config
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation.prepared_data import prepare_data


@pytest.mark.parametrize("redraw", [False, True])
def test_each_partition_has_samples_of_its_own_if_asked(redraw):
    datasets = []
    for seed in (1, 2):
        experiment = config.parse(
            {
                "data": {"samples": 200, "redraw": redraw},
                "partition": {"scheme": "iid", "clients": 2, "seed": seed},
                "method": {"name": "fedavg"},
            }
        )
        datasets.append(prepare_data(experiment, experiment.method).dataset)
    assert datasets[0].x.equal(datasets[1].x) is not redraw


class Percent(FedAvg):
    def validation_share(self):
        return 20


def test_a_share_of_held_out_samples_is_below_one():
    with expect_refusal(r"test_prepared_data.py:\d+: Percent\.validation_share .*20; "):
        prepare_tiny(f"{__name__}:Percent")
