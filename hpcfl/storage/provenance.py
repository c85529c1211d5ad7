"""Provenance of a result: versions, processor, arithmetic, settings, command and
commit.
"""

import hashlib
import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import hpcfl

# Environment variables that determine the kernels of libraries.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
PACKAGES = ("numpy", "torch", "torchvision", "mpi4py", "h5py", "pydantic")


def collect_versions() -> dict[str, str]:
    """Return the versions of hpcfl, Python and PACKAGES; "none" for a missing package."""
    versions = {"hpcfl": hpcfl.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        versions[package] = _find_version(package)
    return versions


@cache
def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def read_processor() -> str:
    """Return the CPU's model name, because other models may round differently."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def digest_arithmetic() -> str:
    """Return a fingerprint of this process's arithmetic.

    It is the first 16 digits of a SHA-256 of the results of some torch kernels on fixed
    numbers. Processors with one name may use different instructions, because of an
    environment variable (such as ATEN_CPU_CAPABILITY) or a library's choice for a
    vendor, and the last bits of results then differ. Processes with equal fingerprints
    should compute equal digests.
    """
    # whole numbers, identical on all machines, and one division
    numbers = (torch.arange(32_000) * 7919 % 10_007 - 5003).float() / 5003
    rows, classes = numbers.view(40, 800), numbers.view(-1, 10)
    images = numbers[:3136].view(4, 1, 28, 28)
    results = [
        rows @ numbers[:19_200].view(800, 24),
        torch.bmm(rows.view(8, 5, 800), rows.view(8, 5, 800).mT),
        torch.conv2d(images, numbers[:200].view(8, 1, 5, 5)),
        torch.log_softmax(classes, dim=1),
        torch.layer_norm(rows, (800,)),
        torch.lerp(rows, rows.exp(), 0.3),
        torch.addcmul(rows, rows, rows, value=0.1),
    ]
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def collect_variables() -> dict[str, str]:
    """Return VARIABLES that are set in the environment, by name.

    A run sets torch's settings itself (``simulation/torch_settings.py``).
    """
    found = {}
    for name in VARIABLES:
        if name in os.environ:
            found[f"${name}"] = os.environ[name]
    return found


def find_commit() -> str | None:
    """Return the commit of the running source tree, followed by '+' if files have
    changed.

    The result is None if git does not track the source, even if another project's
    repository contains it.
    """
    try:
        _ask_git("ls-files", "--error-unmatch", __file__)
        return _ask_git("describe", "--always", "--abbrev=40", "--dirty=+")
    except (OSError, subprocess.SubprocessError):
        return None


def _ask_git(*words: str) -> str:
    """Return the output of a git command in the folder of this file. Raises OSError or
    SubprocessError.
    """
    answer = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), *words],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    return answer.stdout.strip()


def collect_header() -> dict[str, Any]:
    """Return the complete provenance, JSON-able, for the header of results."""
    return {
        "versions": collect_versions(),
        "processor": read_processor(),
        "arithmetic": digest_arithmetic(),
        "command": sys.argv,
        "commit": find_commit(),
    }
