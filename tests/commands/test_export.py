import made_up
import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.commands.export import export
from hpcfl.trained import loading, packed


def test_an_export_without_a_choice_of_models_is_refused(tmp_path):
    with expect_refusal("--client N, --all or --global"):
        export(tmp_path, [], False, None, "last", [], tmp_path / "out")


def test_a_packed_file_has_no_models_to_export(tmp_path):
    made_up.folder(tmp_path / "run")
    file = tmp_path / "p.tar.xz"
    packed.write(loading.load_runs_below([tmp_path])[0], file)
    with expect_refusal(r"p\.tar\.xz: [^/]*$"):
        export(file, None, False, None, "last", [], tmp_path / "out")


@pytest.mark.slow
def test_clients_without_a_model_in_the_round_are_counted(played, tmp_path, printed):
    run = played("fedavg", participation={"fraction": 0.4})
    for moment, left_out in (("pre", 0), ("post", 3)):
        out = tmp_path / moment
        export(run.folder, None, False, moment, "last", ["tiny:blobs"], out)
        assert len(list(out.glob("client-*.safetensors"))) == 5 - left_out
        assert printed().count("note: 3 clients ") == bool(left_out)


@pytest.mark.slow
def test_clients_outside_the_scored_cohort_are_not_written(played, tmp_path):
    cohort = {"clients": "cohort"}
    run = played("fedavg", participation={"fraction": 0.4}, evaluation=cohort)
    out = tmp_path / "out"
    export(run.folder, None, False, "pre", "last", ["tiny:blobs"], out)
    scored = np.flatnonzero(np.isfinite(run.results.values["clients/pre/total"][-1]))
    written = sorted(path.stem for path in out.glob("client-*.safetensors"))
    assert len(scored) == 2
    assert written == [f"client-{client}" for client in scored]
