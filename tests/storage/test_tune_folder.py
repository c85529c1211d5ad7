"""Folder of a tuning, and the results in it."""

from refusals import expect_refusal

from hpcfl.storage import tune_folder

TUNING = {"tune": {"trials": 4}}


def test_a_folder_of_another_tuning_is_refused(tmp_path):
    tune_folder.begin(tmp_path, TUNING)
    with expect_refusal(rf"^{tmp_path}: .*tune\.trials: .* 5 .*--out"):
        tune_folder.begin(tmp_path, {"tune": {"trials": 5}})
    tune_folder.begin(tmp_path, TUNING)


def test_a_damaged_result_is_named(tmp_path):
    tune_folder.begin(tmp_path, TUNING)
    path = tmp_path / tune_folder.RESULTS / "fedavg,rung=0.json"
    path.write_text('{"rounds": -1}')
    with expect_refusal(rf"^{path}: .*'rounds'.* -1"):
        tune_folder.read_result(tmp_path, "fedavg", "rung=0")
