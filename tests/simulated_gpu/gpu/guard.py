"""A plugin of pytest, ``-p gpu.guard``: compiles ``guard.cpp`` against the installed
torch and loads it.

torch asks once, while it is imported, whether there is CUDA. A plugin comes before the
tests' own imports.
"""

import ctypes
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.cpp")


def load() -> None:
    """Seconds of g++ in a temporary folder; what is loaded stays when the folder goes."""
    if "torch" in sys.modules:
        raise RuntimeError("the simulated GPU has to be loaded before torch")
    [torch] = importlib.util.find_spec("torch").submodule_search_locations
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "guard.so"
        subprocess.run(
            [
                "g++",
                "-O0",
                "-std=c++20",
                "-shared",
                "-fPIC",
                "-o",
                library,
                SOURCE,
                f"-I{torch}/include",
                f"-L{torch}/lib",
                "-lc10",
                "-ltorch_cpu",
                f"-Wl,-rpath,{torch}/lib",
            ],
            check=True,
        )
        ctypes.CDLL(str(library))


load()
