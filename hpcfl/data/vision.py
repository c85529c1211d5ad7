"""The only importer of torchvision: ``from hpcfl.data.vision import torchvision``.

torchvision's wheels are built against the CUDA build of torch. With a CPU build their
compiled operators do not load, and the import of torchvision fails, because two
operators that it refers to were never declared. They are declared here; data sets,
transforms and models need none of the compiled operators.
"""

import importlib.util
from pathlib import Path

import torch


def _load_operators() -> bool:
    """Load torchvision's compiled operators; return whether that is possible with this
    build of torch.
    """
    spec = importlib.util.find_spec("torchvision")
    assert (
        spec is not None and spec.submodule_search_locations is not None
    )  # it is required, and a package
    [folder] = spec.submodule_search_locations
    try:
        for library in Path(folder).glob("_C*"):
            torch.ops.load_library(library)
    except OSError:
        return False
    return True


if not _load_operators():
    _declarations = torch.library.Library(
        "torchvision", "DEF"
    )  # they vanish with this object
    for _operator in ("nms", "qnms"):
        _declarations.define(
            f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )

import torchvision  # noqa: E402

__all__ = ["torchvision"]
