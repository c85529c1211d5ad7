"""A user's pictures: decoded as displayed, or refused."""

import io

import numpy as np
import pytest
from PIL import Image
from refusals import expect_refusal

from hpcfl.data.sources import pictures

# Two columns, dark and bright; the first row is darker.
GREY = np.array([[10, 200], [20, 210], [30, 220]], np.uint8)


def decode(image, kind="PNG", mode=None, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return pictures.decode(file, "a.file", kind, mode=mode)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF"])
def test_grey_values_are_kept(kind):
    assert decode(Image.fromarray(GREY), kind).tolist() == [GREY.tolist()]


def test_a_palette_becomes_colours():
    image = Image.fromarray(GREY).convert("P")
    assert decode(image).tolist() == [GREY.tolist()] * 3


def test_an_image_is_rotated_by_its_exif_orientation():
    exif = Image.Exif()
    # the camera was rotated: the picture is displayed rotated by 90° clockwise
    exif[0x0112] = 6
    image = Image.fromarray(GREY)
    turned = np.rot90(GREY, -1)
    assert decode(image, exif=exif).tolist() == [turned.tolist()]


def test_an_alpha_channel_that_hides_nothing_is_dropped():
    image = Image.fromarray(GREY).convert("RGBA")
    assert decode(image).tolist() == [GREY.tolist()] * 3
    image = Image.fromarray(GREY).convert("LA")
    assert decode(image).tolist() == [GREY.tolist()]


def transparent(mode):
    image = Image.fromarray(GREY).convert(mode)
    image.putalpha(Image.fromarray(GREY))
    return image


@pytest.mark.parametrize(
    ("image", "options", "expected"),
    [
        (
            Image.fromarray(GREY.astype(np.uint16) * 200),
            {},
            "'I;16'",
        ),
        (transparent("RGB"), {}, "a.file: has transparent"),
        (Image.fromarray(GREY).convert("P"), {"transparency": 0}, "a.file"),
        (Image.fromarray(GREY), {"transparency": 10}, "a.file: has transparent"),
        (
            Image.fromarray(GREY),
            {"save_all": True, "append_images": [Image.fromarray(GREY + 1)]},
            " 2 frames",
        ),
    ],
)
def test_unsupported_images_are_refused(image, options, expected):
    if options.get("transparency") == 0:
        image.putpixel((0, 0), 0)
    with expect_refusal(expected):
        decode(image, **options)


def test_floats_are_refused():
    with expect_refusal("'F'"):
        decode(Image.fromarray(GREY.astype(np.float32)), "TIFF")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "WEBP"])
def test_a_truncated_file_is_refused(kind):
    file = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(file, kind)
    content = file.getvalue()
    cut = io.BytesIO(content[: len(content) // 2])
    with expect_refusal(r"a\.file: "):
        pictures.decode(cut, "a.file", kind)
