"""Corruptions, noise by client and colours: heterogeneity.md H3."""

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.data.shifts.base import Facts
from hpcfl.data.shifts.corruptions import CONSTANTS
from hpcfl.data.shifts.pixels import Corruption, Hue, NoiseLevel, Tint


def facts(x, clients=4):
    return Facts(0, 1, clients, 0, tuple(x.shape[1:]), x.dtype, 255.0, 10)


def changed(shift, x, group=0, numbers=None, clients=4):
    concept = shift.concepts(facts(x, clients))[group]
    numbers = np.arange(len(x)) if numbers is None else np.array(numbers)
    return x if concept.images is None else concept.images(x, numbers)


def corrupted(name, severity, x, **keys):
    return changed(Corruption(corruption=name, severity=severity), x, **keys)


def grey(value, side, n=1, channels=1):
    return torch.full((n, channels, side, side), value, dtype=torch.uint8)


def noisy(channels=3, n=2):
    return torch.randint(0, 256, (n, channels, 16, 16), dtype=torch.uint8)


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_corruption_gives_bytes_the_same_for_the_same_samples(name):
    x = noisy()
    whole = corrupted(name, 5, x, numbers=[7, 9])
    assert whole.dtype == torch.uint8 and whole.shape == x.shape
    assert not torch.equal(whole, x)
    alone = corrupted(name, 5, x[1:], numbers=[9])
    assert torch.equal(alone[0], whole[1])


def test_severity_zero_is_clean():
    [concept] = Corruption(severity=0).concepts(facts(noisy()))
    assert concept.is_plain and concept.name == "clean"


def test_normal_noise_has_the_mean_and_the_deviation():
    x = corrupted("gaussian-noise", 1, grey(128, 1000)).double()
    assert abs(x.mean() - 128) < 0.1
    assert abs(x.std() / (255 * 0.08) - 1) < 0.01


def test_shot_noise_has_the_variance_of_photons():
    """A Poisson number of mean c·x, divided by c, has variance x/c: 0.4/60 for c = 60
    and x = 102/255.
    """
    x = corrupted("shot-noise", 1, grey(102, 1000)).double() / 255
    assert abs(x.var() / (0.4 / 60) - 1) < 0.01


def test_shot_noise_of_floats_below_zero_is_that_of_zero():
    x = torch.rand(2, 3, 16, 16) - 0.5
    noise = corrupted("shot-noise", 1, x)
    assert torch.equal(noise, corrupted("shot-noise", 1, x.clamp(min=0)))
    assert not noise[x <= 0].any() and noise[x > 0].any()


def test_impulse_noise_is_salt_and_pepper_on_a_share_of_the_pixels():
    x = corrupted("impulse-noise", 5, grey(128, 1000))
    salt, pepper = (float((x == value).double().mean()) for value in (255, 0))
    assert abs(salt - 0.135) < 0.002 and abs(pepper - 0.135) < 0.002
    assert torch.unique(x).tolist() == [0, 128, 255]


def test_contrast_keeps_the_mean_of_each_channel():
    x = noisy(n=3)
    for severity in (1, 5):
        means = corrupted("contrast", severity, x).double().mean(dim=(2, 3))
        assert (means - x.double().mean(dim=(2, 3))).abs().max() < 0.5


@pytest.mark.parametrize("name", ["pixelate", "gaussian-blur", "defocus-blur"])
def test_averaging_corruptions_leave_a_constant_image_unchanged(name):
    x = grey(77, 32, channels=3)
    for severity in range(1, 6):
        assert torch.equal(corrupted(name, severity, x), x)


def test_brightness_is_added_to_the_value_and_cut_off_at_white():
    """0.3 of white is 76.5: a pure red of 100 becomes 176 or 177, and a red of 250
    becomes white.
    """
    red = grey(0, 8, channels=3)
    red[:, 0] = 100
    bright = corrupted("brightness", 5, red)
    assert bright[0, 0].unique().item() in (176, 177) and not bright[0, 1:].any()
    assert corrupted("brightness", 5, grey(250, 8)).unique().tolist() == [255]
    assert corrupted("brightness", 1, grey(51, 8)).unique().tolist() == [64]


def test_saturation_of_grey_stays_and_colour_fades():
    red = grey(0, 8, channels=3)
    red[:, 0] = 200
    faded = corrupted("saturate", 2, red)
    assert faded[0, :, 0, 0].tolist() == [200, 180, 180]
    assert torch.equal(
        corrupted("saturate", 2, grey(9, 8, channels=3)), grey(9, 8, channels=3)
    )


def test_random_corruptions_are_drawn_by_group_and_alike_ones_are_one():
    shift = Corruption(corruption="random", severity="random", groups="clients")
    names = [concept.name for concept in shift.concepts(facts(noisy(), clients=200))]
    assert 40 < len(set(names)) <= 55
    few = [concept.name for concept in shift.concepts(facts(noisy(), clients=20))]
    assert few == names[:20]
    among = Corruption(corruption="random", among=["contrast", "jpeg"], groups=20)
    names = {concept.name for concept in among.concepts(facts(noisy()))}
    assert names == {"contrast 3", "jpeg 3"}
    on_grey = Corruption(corruption="random", groups=300).concepts(facts(noisy(1)))
    assert "saturate 3" not in {concept.name for concept in on_grey}
    Corruption(corruption="random", groups=300).concepts(facts(noisy().float()))


def test_noise_grows_from_client_to_client():
    """The first of five clients has no noise, the last 0.1, the middle one half of
    this.
    """
    x = grey(128, 300)
    shift = NoiseLevel()
    assert shift.concepts(facts(x, 5))[0].is_plain
    for client, level in enumerate([0.0, 0.025, 0.05, 0.075, 0.1]):
        noise = changed(shift, x, client, clients=5).double() / 255
        assert abs(float(noise.std()) - level) < 0.01 * level + 1e-12


def test_floats_are_not_cut_off():
    x = torch.ones(1, 4, dtype=torch.float32)
    given = Facts(0, 1, 2, 0, (4,), torch.float32, 1.0, 10)
    noise = NoiseLevel(noise=1.0).concepts(given)[1].images(x, np.arange(1))
    assert noise.dtype == torch.float32 and noise.max() > 1


def test_a_tint_multiplies_channels_by_factors_of_its_group():
    x = grey(100, 4, n=2, channels=3)
    first, second = (changed(Tint(c=0.5), x, group) for group in (0, 1))
    for tinted in (first, second):
        factors = tinted[0, :, 0, 0]
        assert ((factors >= 50) & (factors <= 150)).all()
        assert torch.equal(tinted, factors.view(1, 3, 1, 1).expand_as(x))
    assert not torch.equal(first, second)


def test_a_hue_rotation_by_120_degrees_turns_red_into_green():
    red = grey(0, 2, channels=3)
    red[:, 0] = 200
    shift = Hue(groups=3)
    assert shift.concepts(facts(red))[0].is_plain
    assert changed(shift, red, 1)[0, :, 0, 0].tolist() == [0, 200, 0]
    assert changed(shift, red, 2)[0, :, 0, 0].tolist() == [0, 0, 200]


@pytest.mark.parametrize(
    ("shift", "x", "expected"),
    [
        (
            Corruption(corruption="saturate"),
            noisy(1),
            "corruption: 'saturate' .* 1$",
        ),
        (
            Corruption(corruption="jpeg"),
            noisy().float(),
            "corruption: 'jpeg' .*float32",
        ),
        (Corruption(corruption="jpeg"), noisy(2), "corruption: 'jpeg' "),
        (Hue(), noisy(1), "kind: 'hue' .* 1$"),
        (Corruption(), torch.zeros(2, 5), r"kind: 'corruption' .*\[5\]"),
        (NoiseLevel(), torch.zeros(2, 5).long(), "kind: 'noise-level' "),
    ],
)
def test_images_that_cannot_be_changed_so_are_refused(shift, x, expected):
    with expect_refusal(expected):
        shift.concepts(facts(x))
