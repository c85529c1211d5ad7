"""Start the tests on the simulated GPU in a separate process, because the device must
exist before torch is imported.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# tests that need a GPU, so that they work when one is available
ON_A_GPU = [
    f"{HERE.parent / 'gpu' / 'test_on_a_gpu.py'}::{name}"
    for name in (
        "test_a_method_ends_as_on_the_cpu_but_for_rounding[local-fasttext]",
        "test_a_run_has_the_same_bits_again_and_without_graphs[mlp-training1]",
        "test_products_in_blocks_on_two_streams_have_the_bits_of_the_cpu",
        "test_groups_of_clients_end_as_on_the_cpu[fedfomo-3]",
        "test_lanes_need_no_more_memory_than_the_rule_estimates[cnn-64]",
    )
]


@pytest.mark.timeout(1800)
def test_on_a_simulated_gpu():
    if shutil.which("g++") is None:
        pytest.skip("the simulated GPU needs a C++ compiler, g++, which is not there")
    paths = [
        str(HERE),
        str(HERE.parents[1]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "gpu.guard",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            "--durations=5",
            str(HERE),
            *ON_A_GPU,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    print(ended.stdout)
