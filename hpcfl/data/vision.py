"""The only module that imports torchvision: ``from hpcfl.data.vision import
torchvision``.

torchvision's wheels are built against the CUDA build of torch. With a CPU build their
compiled operators cannot be loaded, and the import of torchvision fails, because two
operators are undeclared. This module declares them. hpcfl uses no compiled operator.
"""

import importlib.util
from pathlib import Path

import torch


def _load_operators() -> bool:
    """Load torchvision's compiled operators; return whether this build of torch can
    load them.
    """
    spec = importlib.util.find_spec("torchvision")
    # torchvision is a required package
    assert spec is not None and spec.submodule_search_locations is not None
    [folder] = spec.submodule_search_locations
    try:
        for library in Path(folder).glob("_C*"):
            torch.ops.load_library(library)
    except OSError:
        return False
    return True


if not _load_operators():
    # the declarations exist only as long as this object
    _declarations = torch.library.Library("torchvision", "DEF")
    for _operator in ("nms", "qnms"):
        _declarations.define(
            f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )

import torchvision  # noqa: E402

__all__ = ["torchvision"]
