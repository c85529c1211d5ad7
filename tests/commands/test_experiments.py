from hpcfl.commands.experiments import check_file
from hpcfl.communication.communicator import OneProcess

SWEEP = """
rounds = 1
[partition]
scheme = "iid"
clients = 4
[model]
hidden = [4]
[sweep]
seed = [0, 1]
method.name = ["local", "fedavg-c"]
"""


def test_check_names_once_what_has_no_source_in_any_cell(tmp_path, capsys):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    check_file(tmp_path / "sweep.toml", [], OneProcess())
    printed = capsys.readouterr().out
    assert printed.count("note: method.tune_epochs = 10: FedALA does not print it") == 1
