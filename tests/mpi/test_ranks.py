"""The same bits for any number of ranks, every method, also with more ranks than clients and with half the clients a round."""

import jobs
import numpy as np

from hpcfl.storage import results

METHODS = {"local": "", "fedavg": "", "fedprox": "", "fedavg-c": "method.tune_epochs = 1", "fedprox-c": "method.tune_epochs = 1",
           "cwfedavg": "", "fedala": "method.most_epochs = 12", "diversifed": "", "fednh": "",
           "fedamp": "", "fedfomo": "", "ifca": "", "feduv": "", "fedproto": "",
           "cfl": "method.quiet_rounds = 0\nmethod.eps1 = 10.0\nmethod.eps2 = 0.0"}
SWEEP = """
[sweep]
participation.fraction = [1.0, 0.5]
""" + "".join(f"[[sweep.cases]]\nmethod.name = '{name}'\n{keys}\n" for name, keys in METHODS.items())


def test_digests_and_metrics_are_equal_for_any_number_of_ranks(start, alone, experiment, tmp_path):
    file = experiment(SWEEP)
    assert alone(file, tmp_path / "0") == 0
    for ranks in (2, 3, 5, 7):
        code, output = start(ranks, file, "--out", tmp_path / str(ranks)).wait()
        assert code == 0, output
    cells = sorted(path.parent.name for path in (tmp_path / "0").glob("*/run.json"))
    assert len(cells) == 2 * len(METHODS)
    seen = set()
    for cell in cells:
        alone = tmp_path / "0" / cell
        expected = jobs.digest(alone)
        assert expected and expected not in seen  # methods differ
        seen.add(expected)
        for ranks in (2, 3, 5, 7):
            other = tmp_path / str(ranks) / cell
            assert jobs.digest(other) == expected, f"{cell} with {ranks} ranks"
            same(results.read(alone), results.read(other))


def same(one, other):
    """All that was recorded but times and bytes."""
    assert one.finished and other.finished and np.array_equal(one.rounds, other.rounds)
    for name, values in one.values.items():
        if not name.startswith(("seconds", "bytes")):
            np.testing.assert_array_equal(values, other.values[name], err_msg=name)
