"""The tests on the simulated GPU, in a process of their own: the device has to be there before torch is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def test_on_a_simulated_gpu():
    if shutil.which("g++") is None:
        pytest.skip("the simulated GPU needs a C++ compiler, g++, which is not there")
    paths = [str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "gpu.guard", "-p", "no:xdist", "-p", "no:cacheprovider",
         "--durations=5", str(HERE)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    print(ended.stdout)
