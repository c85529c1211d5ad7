"""A client's model as a module, whose forward is the scored prediction."""

import pytest
import tiny
from every_method import NAMES, short
from test_trained_export import files_predict_what_was_recorded

from hpcfl.trained.models import predict_classes
from hpcfl.trained.module import Predicting

# Methods whose clients predict by the forward pass of a module; each represents
# others: the model itself, and one with another head.
PLAIN = ["fedavg", "fednh"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_models_have_the_recorded_accuracy_in_every_method(played, tmp_path, name):
    """The test covers all columns, with batch norm and absent clients, after steps so
    long that models differ much; models are exported to files if a method has its own
    prediction.
    """
    fraction = 1.0 if name == "apple" else 0.6
    # A step of Per-FedAvg uses three mini-batches of at least two samples each.
    counts = tiny.COUNTS if name == "per-fedavg" else tiny.FEW
    run = played(
        short(name),
        counts,
        rounds=2,
        model={"name": "tiny:normalised"},
        training={"lr": 0.5},
        participation={"fraction": fraction},
    )
    columns = {
        key.removesuffix("/weighted")
        for key in run.results.values
        if key.endswith("/weighted")
    }
    for column in columns:
        for one in run.models.of_clients(range(5), column):
            x, y = run.models.samples(one.clients)
            right = float((predict_classes(one.module, x) == y).double().mean())
            assert right == one.recorded
            own_way = isinstance(one.module, Predicting)
    if own_way or name in PLAIN:
        files_predict_what_was_recorded(run, tmp_path / "out")
