"""A plug-in of pytest, ``-p gpu.guard``, that compiles ``guard.cpp`` against the
installed torch and loads it.

torch checks for CUDA once, during its import. A plug-in is loaded before the tests'
imports.
"""

import ctypes
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.cpp")


def load():
    """Compile in a temporary folder, which takes seconds of g++, and load the library;
    it remains loaded after the folder is removed.
    """
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
