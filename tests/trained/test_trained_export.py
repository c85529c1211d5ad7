import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from every_method import short
from refusals import expect_refusal
from safetensors.torch import load_file

from hpcfl.commands.export import export
from hpcfl.rows import constants

MODELS = ["normalised", "Branching", "head_only", "lora", "tied"]
OWN = ["tiny:blobs", *(f"tiny:{name}" for name in MODELS)]


def exported(run, out, *arguments):
    export(run.folder, *arguments, OWN, out)
    return {
        path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))
    }


def files_predict_what_was_recorded(run, out):
    """Export the models of all clients that have one, of the primary column."""
    known = exported(run, out, None, False, None, "last")
    final = run.results.rounds == next(iter(known.values()))["round"]
    recorded = run.results.values[f"clients/{run.score}/correct"][final][0]
    assert [f"client-{i}" for i in np.flatnonzero(np.isfinite(recorded))] == list(known)
    program = torch.export.load(out / "client.pt2").module()
    for stem, about in known.items():
        assert about["program"] == "client.pt2"
        assert about["accuracy"] == about["recorded"]
        client = int(stem.removeprefix("client-"))
        program.load_state_dict(load_file(out / f"{stem}.safetensors"))
        x, y = run.models.samples([client])
        right = int((program(x).argmax(1) == y).sum())
        assert right == about["correct"] == recorded[client]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("fedrod", "head_only"),
        ("fedproto", "lora"),
        ("fedavg", "tied"),
    ],
)
def test_exported_models_contain_frozen_parameters(played, tmp_path, name, model):
    run = played(short(name), model={"name": f"tiny:{model}"})
    files_predict_what_was_recorded(run, tmp_path / "out")
    one = run.model(client=0)
    build = run.models.replay.prepared.setup.build
    frozen = constants.collect(build())
    assert frozen.keys() <= one.state_dict().keys()
    for key, value in frozen.items():
        assert torch.equal(one.state_dict()[key], value)


@pytest.mark.slow
def test_the_json_file_describes_the_model(played, tmp_path):
    run = played("fedproto")
    known = exported(run, tmp_path / "out", [3], False, "pre", "last")["client-3"]
    assert (
        known["prediction"]["function"]
        == "hpcfl.methods.fedproto:predict_by_prototypes"
    )
    assert known["prediction"]["reads"] == [
        "prediction.prototypes",
        "prediction.present",
    ]
    assert known["digest"] == run.summary.digest and known["round"] == 4
    assert known["constructor"]["function"] == "hpcfl.models.mlp:MLP"
    assert (
        known["constructor"]["parts"]["head"]
        == "Linear(in_features=6, out_features=4, bias=True)"
    )
    assert known["input"]["from"]["scale"] == 1 and known["configuration"]["seed"] == 3


def test_a_model_that_torch_cannot_write_down_is_left_as_tensors(
    played, tmp_path, printed
):
    run = played("fedavg", model={"name": "tiny:Branching"}, rounds=1)
    exported(run, tmp_path / "out", [0], False, None, "last")
    assert "client.pt2" in printed()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "client-0.json",
        "client-0.safetensors",
    }


@pytest.mark.slow
def test_an_unavailable_model_prevents_the_whole_export(played, tmp_path):
    run = played("fedavg", participation={"fraction": 0.5})
    out = tmp_path / "new" / "out"
    with expect_refusal(r"client 0 .*'post' of round 3"):
        export(
            run.folder, [1, 0], True, "post", "last", OWN, out
        )  # the server's and client 1's are first
    assert not out.parent.exists() and not list(tmp_path.glob(".*"))
    out.mkdir(parents=True)
    exported(run, out, [1], False, "post", "last")
    assert {path.name for path in out.iterdir()} == {
        "client-1.json",
        "client-1.safetensors",
        "client.pt2",
    }


@pytest.mark.slow
def test_files_are_used_without_hpcfl(played, tmp_path):
    run = played("cwfedavg", rounds=1)
    exported(run, tmp_path / "out", [0], True, None, "last")
    assert (tmp_path / "out" / "class.pt2").exists()
    code = (
        "import sys, torch; from safetensors.torch import load_file;"
        "model = torch.export.load('out/class.pt2').module();"
        "model.load_state_dict(load_file('out/class-3.safetensors'));"
        "print(model(torch.zeros(1, 5)).tolist(), 'hpcfl' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("]] ")[1].strip() == "False"
    own = run.model("class 3")(torch.zeros(1, 5)).tolist()
    assert done.stdout.startswith(str(own))


@pytest.mark.slow
def test_nothing_is_overwritten(played):
    run = played("fedavg", rounds=1)
    with expect_refusal("/run: .* --out$"):
        export(run.folder, [0], False, None, "last", OWN, run.folder)
