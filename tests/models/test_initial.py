"""Common initial model from a file."""

import pytest
import tiny
import torch
from playing import run_alone
from refusals import expect_refusal
from safetensors.torch import save_file

from hpcfl.communication.communicator import Process
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare


def tensors_of():
    """Return the parameters of the drawn model by name, multiplied by two."""
    prepared = prepare(tiny.parse("fedavg"), Process(0, 1))
    module = prepared.setup.build()
    return {name: 2 * value for name, value in module.state_dict().items()}


def table_with(file, **keys):
    model = {"name": "mlp", "hidden": [6], "init": str(file)}
    return tiny.table("fedavg", model=model, **keys)


def prepared_from(file):
    return prepare(config.parse(table_with(file)), Process(0, 1))


def test_all_begin_with_the_files_tensors_and_other_draws_do_not(tmp_path):
    tensors = tensors_of()
    save_file(tensors, tmp_path / "init.safetensors")
    setup = prepared_from(tmp_path / "init.safetensors").setup
    expected = torch.cat([value.flatten() for value in tensors.values()])
    assert torch.equal(setup.initial(), expected)
    assert not torch.equal(setup.initial(1), expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head.bias": None}, "model.init = .*'head.bias'.* hidden1.weight"),
        ({"more": torch.zeros(1)}, "model.init = .*'more'.* hidden1.weight"),
        ({"head.bias": torch.zeros(7)}, r"'head\.bias' .*\[7\].*\[4\]"),
        (
            {"head.bias": torch.tensor([0, torch.nan, 0, 0])},
            r"'head\.bias'\[1\] is nan",
        ),
    ],
)
def test_tensors_that_are_not_the_models_are_refused(tmp_path, change, words):
    tensors = tensors_of() | change
    kept = {name: value for name, value in tensors.items() if value is not None}
    save_file(kept, tmp_path / "init.safetensors")
    with expect_refusal(words):
        prepared_from(tmp_path / "init.safetensors")


def test_an_invalid_file_is_refused(tmp_path):
    with expect_refusal(r"model\.init = '.*none': "):
        prepared_from(tmp_path / "none")
    other_type = b'{"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}'
    size = len(other_type).to_bytes(8, "little")
    for content in (b"no tensors", size + other_type + bytes(3)):
        (tmp_path / "file").write_bytes(content)
        with expect_refusal(rf"model\.init = '{tmp_path}/file': "):
            prepared_from(tmp_path / "file")


@pytest.mark.slow
def test_a_run_continues_only_with_the_same_file(tmp_path):
    file, folder = tmp_path / "init.safetensors", tmp_path / "run"
    tensors = tensors_of()
    save_file(tensors, file)

    def play(rounds):
        table = table_with(file, rounds=rounds)
        run_alone(table, folder, False)

    play(1)
    save_file({name: value + 1 for name, value in tensors.items()}, file)
    with expect_refusal(r"init\.safetensors, .*SHA-256 \w{64}, "):
        play(2)
    save_file(tensors, file)
    play(2)
