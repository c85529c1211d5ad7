"""One colour for each method, the same in every figure and page, whatever else is shown
beside it.
"""

import colorsys
import hashlib

# Neighbours in this list differ most. A new built-in method is appended; a user's own
# gets a colour that follows from its name.
METHODS = (
    "fedavg",
    "local",
    "fedala",
    "cwfedavg",
    "ditto",
    "fedrep",
    "fedprox",
    "diversifed",
    "fednh",
    "fedamp",
    "per-fedavg",
    "fedper",
    "pfedme",
    "apple",
    "fedfomo",
    "fedbabu",
    "fedrod",
    "fedproto",
    "fedcac",
    "feduv",
    "fedphp",
    "partialfed",
    "creff",
    "cfl",
    "ifca",
    "fedavg-c",
    "fedprox-c",
    "apfl",
    "scaffold",
    "moon",
    "fedbn",
    "fedadam",
    "fedyogi",
)
GOLDEN = (
    0.6180339887  # of the circle of hues: any number of such steps keeps hues apart
)
FIRST = 0.56  # the first hue, a blue
LUMINANCES = (
    0.28,
    0.14,
    0.21,
)  # each has a contrast of 3 and more to white as well as to a dark page
# so many golden steps come back to nearly the same hue: colours from there on are
# duller
VIVID = 21
SATURATIONS = (0.9, 0.25)
STRANGERS = 997  # places after ``METHODS`` for methods that are not listed


def of(method: str) -> str:
    """The colour of a method, as ``#rrggbb``."""
    number = place(method)
    saturation = SATURATIONS[number // VIVID % len(SATURATIONS)]
    pure = colorsys.hls_to_rgb((FIRST + number * GOLDEN) % 1, 0.5, saturation)
    return _with_luminance(
        [_linear(part) for part in pure], LUMINANCES[number % len(LUMINANCES)]
    )


def place(method: str) -> int:
    """A number for a method, by which its look is chosen: always the same, and its own
    if it is built in.
    """
    if method in METHODS:
        return METHODS.index(method)
    return (
        len(METHODS) + int(hashlib.sha256(method.encode()).hexdigest(), 16) % STRANGERS
    )


def luminance(colour: str) -> float:
    """The relative luminance of ``#rrggbb``, from 0 for black to 1 for white, by WCAG
    2.
    """
    parts = [_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5)]
    return _luminance(parts)


def _with_luminance(linear: list[float], wanted: float) -> str:
    """A colour in linear light, darkened or mixed with white until it has the wanted
    luminance.
    """
    there = _luminance(linear)
    white = (wanted - there) / (1 - there)
    mixed = (
        [part + white * (1 - part) for part in linear]
        if there < wanted
        else [part * wanted / there for part in linear]
    )
    return "#" + "".join(f"{round(255 * _encoded(part)):02x}" for part in mixed)


def _luminance(linear: list[float]) -> float:
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    """An sRGB component in linear light, both in [0, 1]."""
    return float(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)


def _encoded(part: float) -> float:
    """The inverse of ``_linear``."""
    return float(
        12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055
    )
