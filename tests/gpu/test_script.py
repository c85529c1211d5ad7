"""``tests/benchmarks/gpu.sh`` where there is no GPU."""

import subprocess
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.sh"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_one_line_says_that_there_is_no_gpu(tmp_path):
    """The script's own check, without the environment that it makes."""
    check = SCRIPT.read_text().partition("<<'CHECK'\n")[2].partition("\nCHECK\n")[0]
    ended = subprocess.run(["python", "-c", check], capture_output=True, text=True)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1
    assert "offers no GPU to torch" in ended.stderr and not ended.stdout
