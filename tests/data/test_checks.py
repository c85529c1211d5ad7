"""Parts of a data set are consistent, for any source."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.data import checks, datasets
from hpcfl.data.datasets import Dataset, Owners
from hpcfl.data.sources.base import Source
from hpcfl.experiment import config

WHOLE = Dataset(
    "made",
    torch.zeros(4, 2),
    torch.tensor([0, 1, 1, 0]),
    classes=2,
    official_test=1,
    owners=Owners(("ann", "bob"), np.array([0, 0, 1, 1])),
)


class Made(Source):
    """A user's source that returns any object."""

    built_in = True
    returned: object = None

    def read(self, name, root):
        return self.returned


made = Made()


def load(returned):
    made.returned = returned
    return datasets.load(config.Data(dataset=f"{__name__}:made"))


def test_a_data_set_that_fits_is_taken():
    assert load(WHOLE) is WHOLE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.zeros(3, 2)}, "3 samples and y 4 "),
        ({"y": torch.zeros(4)}, r"y .*int64 .*torch\.float32"),
        ({"y": WHOLE.y.numpy()}, r"y .*tensor .*ndarray"),
        ({"y": [0, 1, 1, 0]}, r"y .*tensor .*list"),
        ({"classes": 1}, " 0 … 0; .* 0 … 1"),
        ({"y": torch.tensor([0, 1, -1, 0])}, " 0 … 1; .* -1 … 1"),
        ({"official_test": 4}, "official_test = 4 .* 3"),
        (
            {"x": torch.tensor([[0.0, 1], [2, 3], [4, float("nan")], [6, 7]])},
            r"x\[2, 1\] is nan",
        ),
        ({"x": torch.full((4, 2), 9), "vocabulary": 9}, "0 to 9"),
        ({"x": WHOLE.x.numpy()}, "x .*float32.* ndarray"),
        ({"x": WHOLE.x.double()}, r"x .*float32.* torch\.float64"),
        ({"classes": 2.0}, r"classes = 2\.0"),
        ({"classes": torch.tensor(2)}, r"classes = tensor\(2\)"),
        ({"std": (0.5, 0.5)}, "mean and std"),
        ({"std": (0.0,)}, "std not 0"),
        ({"mean": [0.5], "std": [0.5]}, "mean and std .*tuples"),
        ({"statistics": ((0.5, 0.5), (1.0, 0.0))}, "std not 0"),
        ({"statistics": ((0.5,) * 3, (1.0,) * 3)}, "mean and std .*channel"),
        ({"scale": float("nan")}, "scale"),
        ({"owners": ["ann"] * 4}, "owners .*number_owners"),
        ({"owners": Owners(("ann",), np.zeros(4))}, "owners .*float64"),
        ({"owners": Owners(("ann",), np.zeros(3, int))}, "3 .* 4 samples"),
        ({"owners": Owners(("ann",), np.ones(4, int))}, " 1 names"),
        (
            {"owners": Owners(("ann", "ann"), np.zeros(4, int))},
            "'ann'",
        ),
    ],
)
def test_parts_that_contradict_one_another_are_refused(change, words):
    with expect_refusal(words):
        load(replace(WHOLE, **change))


def test_a_source_must_return_a_data_set():
    with expect_refusal(r"data\.dataset = .*Dataset, not tuple"):
        load((WHOLE.x, WHOLE.y))


@pytest.mark.parametrize(
    ("shape", "is_noted"),
    [
        ((4, 28, 28, 3), True),
        ((4, 3, 28, 28), False),
        ((4, 1, 28, 1), False),
    ],
)
def test_images_with_their_channels_last_are_noted(shape, is_noted):
    x = torch.zeros(shape, dtype=torch.uint8)
    notes = load(replace(WHOLE, x=x)).notes
    assert any("transpose x" in note for note in notes) is is_noted


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize(
    ("largest", "scale", "is_noted"),
    [(1.0, 255.0, True), (200.0, 255.0, False), (1.0, 1.0, False), (0.0, 255.0, False)],
)
def test_values_that_the_scale_makes_almost_equal_are_noted(
    largest, scale, is_noted, dtype
):
    x = torch.full((4, 2), largest, dtype=dtype)
    notes = load(replace(WHOLE, x=x, scale=scale)).notes
    assert any("scale = 255" in note for note in notes) is is_noted


@pytest.mark.parametrize(
    ("names", "is_noted"),
    [
        (("Ann", "ann"), True),
        (("1", "1.0"), True),
        (("1", "2", "nan", "NA"), False),
        (("a1", "a01"), False),
    ],
)
def test_two_spellings_of_a_client_are_noted(names, is_noted):
    owners = Owners(names, np.zeros(4, int))
    notes = load(replace(WHOLE, owners=owners)).notes
    assert any(f"'{names[0]}' and" in note for note in notes) is is_noted


@pytest.mark.parametrize(
    ("x", "stored", "vocabulary", "words"),
    [
        ([0, 255], torch.uint8, None, ""),
        ([0.0, 255.0], torch.uint8, None, ""),
        ([0.0, 0.5], torch.uint8, None, "pixels .*255.* 0 to 0.5"),
        ([0, 256], torch.uint8, None, "pixels .*255.* 0 to 256"),
        ([-1, 2], torch.uint8, None, "pixels .* -1 to 2"),
        ([float("nan"), 2.0], torch.uint8, None, "pixels "),
        ([0, 8], torch.int64, 9, ""),
        ([0, 9], torch.int64, 9, "token ids .* 0 to 8;"),
        ([0, 9], torch.int64, None, ""),
        ([0.5, 1], torch.int32, 9, "token ids "),
        ([0.5, -300], torch.float32, None, ""),
        ([[0.5], [float("inf")]], torch.float32, None, r"x\[1, 0\] is inf"),
        ([], torch.uint8, None, ""),
        ([True, False], torch.uint8, None, "real numbers.*bool"),
        ([1j], torch.float32, None, "real numbers.*complex"),
        (np.array([0, 300], np.uint16), torch.uint8, None, "pixels .* 0 to 300"),
        (torch.ones(2).bfloat16(), torch.float32, None, ""),
    ],
)
def test_inputs_that_a_data_set_cannot_hold_are_described(x, stored, vocabulary, words):
    found = checks.describe_inputs(torch.as_tensor(x), stored, vocabulary)
    assert bool(found) == bool(words) and re.search(words, found)
