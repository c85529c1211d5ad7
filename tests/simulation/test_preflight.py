"""Mistakes in a user's code are found before round 1: one line with file and line, code
2, no file written.
"""

import errno
import itertools
from collections.abc import Sequence
from pathlib import Path

import mistakes
import numpy as np
import pytest
import tiny
import torch
from playing import prepare_alone, prepare_tiny, set_keys
from refusals import expect_refusal

from hpcfl.clients.execution import SerialKernel
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import plugins
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation import dry_round, preflight, score_check
from hpcfl.simulation.prepare import Prepared
from hpcfl.storage.clients import digest_tensors

FILE = Path(mistakes.__file__)
EXPERIMENT = """
name = "mistaken"
rounds = 1
partition = { scheme = "iid", clients = 3 }
method = { name = "fedavg" }
training = { batch_size = 200 }
"""
BATCHED = "cannot be batched over clients"


def is_unchanged(tried: Prepared, prepared: Prepared) -> bool:
    """Return whether a preflight found only the trainings."""
    before, after = vars(prepared), vars(tried)
    same = before.keys() - {"findings", "notes", "initial_server_state"}
    return tried.notes == prepared.notes and all(
        after[name] is before[name] for name in same
    )


def points_to(line: str, fragment: str) -> bool:
    """Return whether a line names the first line of the mistakes that contains a
    fragment.
    """
    numbered = enumerate(FILE.read_text().splitlines(), 1)
    return (
        f"{FILE}:{next(number for number, text in numbered if fragment in text)}: "
        in line
    )


@pytest.fixture
def hpcfl(hpcfl, tmp_path):
    """Return ``hpcfl(command, "key=value", …)``, which runs a command on a file and
    returns code, lines of stdout and lines of stderr.
    """
    (tmp_path / "own.toml").write_text(EXPERIMENT)

    def run_on_file(name: str, *overrides: str, options: Sequence[str] = ()):
        code, shown, errors = hpcfl(name, "own.toml", *set_keys(*overrides), *options)
        return code, shown.splitlines(), errors.splitlines()

    return run_on_file


MISTAKES = [
    ("method.name=mistakes:Nothing", "class Nothing", "hpcfl.methods.base.Method"),
    (
        "method.name=mistakes:Unfinished",
        "class Unfinished",
        "aggregate, send, start, update",
    ),
    (
        "method.name=mistakes:TakesAnother",
        "class TakesAnother",
        "TypeError: TakesAnother.__init__() ",
    ),
    ("method.name=mistakes:VectorLoss", "class VectorLoss", "float32 [2]; "),
    ("method.name=mistakes:NumberLoss", "class NumberLoss", "is a float; "),
    ("method.name=mistakes:FreeLoss", "class FreeLoss", "'mistakes:FreeLoss'"),
    ("method.name=mistakes:MisspeltPrimary", "class MisspeltPrimary", "'pots'"),
    ("method.name=mistakes:NoTrained", "class NoTrained", "after local training"),
    ("method.name=mistakes:BareRows", "class BareRows", "expected a ClientModel"),
    (
        "method.name=mistakes:UnknownVariable",
        "lane.recieved",
        "'recieved'; did you mean 'received'",
    ),
    ("method.name=mistakes:OneRowOfAll", "variables=received", "'received' "),
    (
        "method.name=mistakes:MeanUpload",
        "# one row for all",
        "'update' returns 'model' of shape [4810]",
    ),
    (
        "method.name=mistakes:ShortUpload",
        "ShortUpload",
        "server['model'] became float32 [4809]; server_state declared float32 [4810]",
    ),
    ("method.name=mistakes:SharedWeights", "class SharedWeights", "weights of a Mean"),
    (
        "method.name=mistakes:WrongState",
        'fleet.state["last"] = trained',
        "fleet.state['last'] became float32 [1, 4810]; client_state declared float32 [1, 3]",
    ),
    ("method.name=mistakes:Counting", "self.calls =", "self.calls = …: "),
    (
        "method.name=mistakes:MisspeltUpload",
        'uplink["modle"]',
        "uplink['modle'] is unknown; did you mean 'model'?",
    ),
    ("method.name=mistakes:NormOfAll", "class NormOfAll", "upload 'model' of a client"),
    (
        "method.name=mistakes:StateOfAll",
        "class StateOfAll",
        "fleet.state['mean'] of a ",
    ),
    ("method.name=mistakes:SendsMean", "class SendsMean", "'anchor'"),
    ("method.name=mistakes:ScoreOfAll", "class ScoreOfAll", "number 'p"),
    ("method.name=mistakes:RecordOfAll", "class RecordOfAll", "'recorded/length'"),
    ('overlay=[{kind="mistakes:OverlayOfAll"}]', None, "upload 'model' of a client"),
    ("method.name=mistakes:ChangesInPlace", None, "server['model']"),
    ("method.name=mistakes:HalvesUpload", "class HalvesUpload", "trained.clone()"),
    ('overlay=[{kind="mistakes:HalvesMessage"}]', None, "HalvesMessage.upload"),
    ("method.name=mistakes:CountsRounds", "class CountsRounds", "server['model'] "),
    ("method.name=mistakes:CountsLosses", "class CountsLosses", "fleet.state"),
    ("method.name=mistakes:UnseededServer", "class UnseededServer", "without a key"),
    ("method.name=mistakes:NoisyServer", "class NoisyServer", "setup.normal"),
    ("method.name=mistakes:NoisyUpload", "class NoisyUpload", "fleet.uniform"),
    (
        "method.name=mistakes:NoisyStep runtime.lanes=4",
        "class NoisyStep",
        "context.uniform",
    ),
    ("model.name=mistakes:number", None, "'mistakes:number' is of type int; "),
    (
        "model.name=mistakes:Image model.inputs=10",
        "return self.linear(x.flatten(1))",
        "2×1×8×8",
    ),
    (
        "model.name=mistakes:Image model.outputs=5",
        "class Image",
        "[2, 5]; expected [2, 10]",
    ),
    (
        "model.name=mistakes:sequential",
        "def sequential",
        "mat1 and mat2 shapes cannot be multiplied (2x64 and 63x10)",
    ),
    ("model.name=mistakes:of_shape_alone", None, "(shape, classes, *, own keys)"),
    ("model.name=mistakes:Image method.name=fedphp", "class Image", "'features'"),
    ("model.name=mistakes:Image method.name=cwfedavg", None, "cwfedavg "),
    ('evaluation.scores=["own_scores:Typo"]', None, "'sums': AttributeError"),
    ("evaluation.score=accuracy", None, "evaluation.score = 'accuracy': "),
    ("data.dataset=mistakes:Nothing", "class Nothing", "hpcfl.data.sources.base."),
    ("data.dataset=mistakes:unreadable", "missing.csv", "FileNotFoundError"),
    (
        "partition.scheme=mistakes:Nothing",
        "class Nothing",
        "hpcfl.data.partitions.base.Scheme",
    ),
    (
        "partition.scheme=mistakes:Undrawable",
        "labels[len(labels)]",
        "IndexError: index 1797 ",
    ),
    ("partition.scheme=mistakes:Shuffled", "class Shuffled", "randomness.generator"),
    ("partition.scheme=mistakes:Sorted", "labels.sort()", "read-only"),
    (
        "method.name=mistakes:Item runtime.lanes=4",
        "value.item()",
        "set runtime.lanes = 1",
    ),
]


@pytest.mark.parametrize(("overrides", "fragment", "words"), MISTAKES)
def test_a_mistake_gives_one_line_and_writes_no_file(
    hpcfl, tmp_path, overrides, fragment, words
):
    code, shown, errors = hpcfl("run", *overrides.split())
    assert (code, shown, len(errors)) == (2, [], 1)
    assert words in errors[0] and (fragment is None or points_to(errors[0], fragment))
    assert [path.name for path in tmp_path.iterdir()] == ["own.toml"]


def test_a_model_is_tried_even_if_a_round_is_too_large(hpcfl, monkeypatch):
    monkeypatch.setattr(dry_round, "SMALL_MODEL", 0)
    monkeypatch.setattr(dry_round, "TOO_LARGE", 0)
    code, _, [errors] = hpcfl("check", "model.name=mistakes:Unbatched")
    assert code == 2 and "[10]; expected [2, 10]" in errors


@pytest.mark.slow
def test_an_option_prints_the_traceback(hpcfl):
    mistake = "method.name=mistakes:UnknownVariable"
    code, _, errors = hpcfl("check", mistake, options=["--traceback"])
    assert code == 2 and errors[0] == "Traceback (most recent call last):"
    assert any("lane.recieved" in line for line in errors)
    assert errors[-1].startswith(f"hpcfl: {FILE}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "fragment"),
    [
        ("method.name=mistakes:Branch", "if value > 1"),
        ("model.name=mistakes:Recurrent", "self.cell(x[:, 0])"),
    ],
)
def test_unbatchable_code_runs_with_one_lane_and_a_note(hpcfl, override, fragment):
    for name in ("check", "run"):
        code, shown, errors = hpcfl(name, override)
        assert code == 0, errors
        (note,) = [line for line in shown if BATCHED in line]
        assert points_to(note, fragment)
        assert note.startswith("note: ") and "runtime.lanes = 1" in note


@pytest.mark.parametrize(
    ("method", "overlays", "is_noted"),
    [
        ("mistakes:KeepsModel", [], True),
        ("fedavg", ["mistakes:KeepsUplink"], True),
        ("fedavg", ["hpcfl.methods.base:OwnOverlay"], False),
        ("hpcfl.methods.local:Local", [], False),
        # without an upload
        ({"name": "tiny:Diverges", "client": 0, "since": 1}, [], False),
    ],
)
def test_a_server_that_keeps_its_state_is_noted(method, overlays, is_noted):
    kinds = [{"kind": kind} for kind in overlays]
    tried = preflight.run(prepare_tiny(method, overlay=kinds), OneProcess())
    noted = ["'aggregate'" in note for note in tried.notes]
    assert noted == [True] * is_noted


@pytest.mark.parametrize(
    ("kind", "lanes", "words"),
    [
        (
            "batch norm",
            "auto",
            "native_batch_norm, native_batch_norm_backward ",
        ),
        (
            "batch norm",
            2,
            "runtime.lanes = 2: native_batch_norm, native_batch_norm_backward ",
        ),
        (
            "convolution",
            4,
            "runtime.lanes = 4: convolution, convolution_backward, native_batch_norm",
        ),
        ("batch norm", 1, None),
        ("convolution", "auto", None),
        ("attention", "auto", None),
    ],
)
def test_operators_that_depend_on_other_lanes_are_noted(kind, lanes, words):
    notes = preflight.run(
        prepare_tiny(
            "fedavg",
            model={"name": "tiny:layered", "kind": kind},
            runtime={"lanes": lanes},
        ),
        OneProcess(),
    ).notes
    found = [note for note in notes if "last bits" in note]
    assert [note[: len(words or "")] for note in found] == ([words] if words else [])


class Two(OneProcess):
    """This rank, and another one with a client whose operation cannot be batched."""

    def allgather(self, value):
        if value is None:  # no error
            return [None, None]
        return [value, {**value, "unbatched": "own.py:3: cannot be batched"}]


def test_all_ranks_take_the_same_kernel():
    prepared = preflight.run(prepare_tiny("fedavg"), Two())
    assert isinstance(prepared.resources.kernel, SerialKernel)
    assert prepared.notes[-1].startswith("own.py:3: cannot be batched; ")


def test_the_uploads_of_clients_that_train_one_at_a_time_are_known():
    """The server's step in a round without clients needs them."""
    alone, together = (
        preflight.run(prepare_tiny(method), OneProcess()).findings
        for method in ("mistakes:Item", "fedavg")
    )
    assert alone.unbatched and not together.unbatched
    assert alone.upload_kinds == together.upload_kinds


def test_a_model_with_other_gradients_in_a_batch_runs_with_one_lane():
    prepared = prepare_tiny(
        "fedavg", model={"name": "mistakes:Reversed", "inputs": tiny.FEATURES}
    )
    tried = preflight.run(prepared, OneProcess())
    assert isinstance(tried.resources.kernel, SerialKernel)


def test_other_gradients_of_a_second_client_are_refused_with_a_number_of_lanes():
    prepared = prepare_tiny(
        "fedavg", model={"name": "mistakes:Padded"}, runtime={"lanes": 2}
    )
    with expect_refusal("runtime.lanes"):
        preflight.run(prepared, OneProcess())


def test_a_trial_sends_different_messages_to_the_server():
    prepared = prepare_tiny("mistakes:Odd")
    assert is_unchanged(preflight.run(prepared, OneProcess()), prepared)


@pytest.mark.slow
@pytest.mark.parametrize("method", plugins.list_names("hpcfl.methods"))
def test_a_trial_changes_no_state_and_no_draw(method):
    prepared = prepare_tiny(method, participation={"fraction": 0.5})
    before, drawn = everything(prepared), torch.get_rng_state()
    assert is_unchanged(preflight.run(prepared, OneProcess()), prepared)
    assert torch.equal(torch.get_rng_state(), drawn) and everything(prepared) == before


def everything(prepared) -> list[object]:
    """Return all start values of a run in a form that can be compared."""
    resources, store = prepared.resources, prepared.store
    module = dict(resources.kernel.module.state_dict())
    return [
        digest_tensors(prepared.initial_server_state),
        (store.snapshot().template.digest, store.snapshot().digests.written),
        digest_tensors(module),
        [module.training for module in resources.kernel.module.modules()],
        dict(resources.stopwatch.seconds),
        {
            name: {client: pool.tolist() for client, pool in part.items()}
            for name, part in resources.samples.parts.items()
        },
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("fedproto", {"model": {"name": "resnet8"}}),
        (
            {"name": "fedprox", "ala": True, "aggregation": "class-wise"},
            {"participation": {"fraction": 0.5}},
        ),
        ("fedavg", {"model": {"name": "resnet8"}, "training": {"buffers": "average"}}),
        ("fedavg", {"model": {"name": "resnet8"}, "runtime": {"lanes": 2}}),
        ("fedavg", {"model": {"name": "fasttext"}, "tokens": True}),
    ],
)
def test_built_in_methods_and_models_pass(tmp_path, method, sections):
    sections = dict(sections)
    shape = (20,) if sections.pop("tokens", False) else (1, 28, 28)
    generator = np.random.default_rng(1)
    x = generator.integers(0, 200, (60, *shape)).astype(
        np.uint8 if len(shape) == 3 else np.int64
    )
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(60) % 3)
    table = {
        "data": {"dataset": "npz", "file": str(tmp_path / "own.npz")},
        "partition": {"scheme": "iid", "clients": 3},
        "method": {"name": method} if isinstance(method, str) else method,
        **sections,
    }
    prepared = prepare_alone(table)
    tried = preflight.run(prepared, OneProcess())
    # a note states that batched convolutions depend on the ranks
    assert is_unchanged(tried, prepared) or "lanes" in tried.notes[-1]


STALE = OSError(errno.ESTALE, "Stale file handle: torch.fx")


@pytest.fixture
def failing(monkeypatch):
    """Return ``failing(error, calls, lanes)``, which lets calls of these numbers in the
    dry round fail, or all calls with several lanes.
    """

    def arm(error: BaseException, calls=(), lanes=False):
        real, numbers = dry_round.shrink, itertools.count(1)

        def shrink(prepared, most, *arguments):
            if next(numbers) in calls or (lanes and most > 1):
                raise error
            return real(prepared, most, *arguments)

        monkeypatch.setattr(dry_round, "shrink", shrink)

    return arm


@pytest.mark.parametrize(
    "error",
    [
        STALE,
        RuntimeError("can't start new thread"),
        torch.OutOfMemoryError("CUDA out of memory"),
        ValueError("a timer"),
    ],
    ids=repr,
)
def test_a_passing_failure_ends_the_run_and_is_no_bad_input(
    hpcfl, failing, tmp_path, error
):
    failing(error, calls=(1,))
    code, _, errors = hpcfl("run")
    assert code == 1
    (line,) = errors
    assert str(error).split(":")[-1] in line
    assert "method.name" not in line
    assert not (tmp_path / "runs").exists()


def test_a_lasting_lack_of_memory_is_a_failure_too(hpcfl, failing):
    failing(MemoryError(), calls=range(99))
    code, _, errors = hpcfl("run", "runtime.lanes=1")
    assert code == 1 and len(errors) == 1 and "method.name" not in errors[0]


def test_a_lack_of_memory_in_a_score_is_a_failure(hpcfl, monkeypatch):
    def full(*given):
        raise MemoryError

    monkeypatch.setattr(score_check, "check", full)
    code, _, errors = hpcfl("run", 'evaluation.scores=["own_scores:Surprise"]')
    assert code == 1 and "score" not in errors[0]


def test_an_unknown_error_of_several_lanes_is_a_mistake(hpcfl, failing):
    failing(TypeError("expected one client"), lanes=True)
    code, _, errors = hpcfl("run")
    assert code == 2
    assert "runtime.lanes = 1" in errors[0]


def test_an_interrupt_is_neither_failure_nor_mistake(hpcfl, failing):
    failing(KeyboardInterrupt(), calls=(1,))
    with pytest.raises(KeyboardInterrupt):
        hpcfl("run")


def test_a_machine_failure_in_a_server_hook_ends_the_run(hpcfl, monkeypatch):
    def full(*given):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(FedAvg, "aggregate", full)
    code, _, errors = hpcfl("run")
    assert code == 1 and "Input/output error" in errors[0]
