"""The same bits for any number of ranks: every method with 3, some with more ranks than clients; half the clients a round too."""

import jobs
import numpy as np
import pytest

from hpcfl.storage import results

METHODS = {"local": "", "fedavg": "", "fedprox": "", "fedavg-c": "method.tune_epochs = 1", "fedprox-c": "method.tune_epochs = 1",
           "cwfedavg": "", "fedala": "method.most_epochs = 12", "diversifed": "", "fednh": "",
           "fedamp": "", "fedfomo": "", "ifca": "", "feduv": "", "fedproto": "",
           "cfl": "method.quiet_rounds = 0\nmethod.eps1 = 10.0\nmethod.eps2 = 0.0",
           "fedper": "", "fedrep": "", "fedbabu": "method.tune_from = 'local'", "fedrod": "method.personal = 'hyper'",
           "ditto": "", "pfedme": "method.lam = 5.0", "fedphp": "", "partialfed": "method.warmup = 1", "fedcac": "",
           "per-fedavg": "", "creff": "method.head_epochs = 2\nmethod.match_steps = 2\nmethod.features_each = 10"}
KINDS = ["local", "fedavg", "cwfedavg", "fedala", "fednh", "fedrep"]  # of messages and of private state


@pytest.mark.parametrize(("counts", "names"), [((3,), list(METHODS)), ((2, 5, 7), KINDS)])
def test_digests_and_metrics_are_equal_for_any_number_of_ranks(start, alone, experiment, tmp_path, counts, names):
    cases = "".join(f"[[sweep.cases]]\nmethod.name = '{name}'\n{METHODS[name]}\n" for name in names)
    file = experiment(f"[sweep]\nparticipation.fraction = [1.0, 0.5]\n{cases}")
    assert alone(file, tmp_path / "0") == 0
    for ranks in counts:
        code, output = start(ranks, file, "--out", tmp_path / str(ranks)).wait()
        assert code == 0, output
    cells = sorted(path.parent.name for path in (tmp_path / "0").glob("*/run.json"))
    assert len(cells) == 2 * len(names)
    seen = set()
    for cell in cells:
        alone = tmp_path / "0" / cell
        expected = jobs.digest(alone)
        assert expected and expected not in seen  # methods differ
        seen.add(expected)
        for ranks in counts:
            other = tmp_path / str(ranks) / cell
            assert jobs.digest(other) == expected, f"{cell} with {ranks} ranks"
            same(results.read(alone), results.read(other))


def same(one, other):
    """All that was recorded but times and bytes."""
    assert one.finished and other.finished and np.array_equal(one.rounds, other.rounds)
    for name, values in one.values.items():
        if not name.startswith(("seconds", "bytes")):
            np.testing.assert_array_equal(values, other.values[name], err_msg=name)
