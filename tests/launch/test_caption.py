"""Caption of each figure of the papers."""

import re

import caption
import numpy as np
from matplotlib.image import imread, imsave
from places import ROOT

MAKE = (ROOT / "launch" / "figures" / "make.sh").read_text(encoding="utf-8")


def test_a_caption_is_added_below_an_unchanged_picture(tmp_path):
    picture = np.random.default_rng(0).random((200, 500, 3))
    file = tmp_path / "figure.png"
    imsave(file, picture)
    before = imread(file)
    caption.write_caption(file, "Not the paper's setting: " + "three rounds, " * 6)
    after = imread(file)
    assert after.shape[1] == 500 and after.shape[0] > 230
    np.testing.assert_array_equal(after[:200], before)
    assert after[200:, :, :3].min() < 0.5  # dark letters
    assert after[200:, -3:, :3].min() == 1  # no letter is cut off at the right


def test_every_figure_states_its_difference_from_the_papers():
    plots, settings = re.findall(r"declare -A \w+=\(\n(.*?)\n\)", MAKE, re.DOTALL)
    names = re.compile(r"\[([\w-]+)\]=")
    assert names.findall(plots)
    assert set(names.findall(plots)) == set(names.findall(settings))
