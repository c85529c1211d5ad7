"""First hour on a GPU: check for missing packages, then run the rows of ``gpu_rows.py``
by ``gpu_play.py``. Started by gpu.sh.
"""

import argparse
import importlib.util
import os
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]
# the packages of pyproject.toml that rows import
NEEDED = (
    "click",
    "filelock",
    "h5py",
    "mpi4py",
    "numpy",
    "pydantic",
    "rich",
    "scipy",
    "torch",
    "typing_extensions",
)


def main(words: list[str]) -> int:
    """Run all rows; return 2 if a package is missing, 1 if a row failed, else 0."""
    parser = argparse.ArgumentParser(prog="gpu.sh", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of all output")
    parser.add_argument("--hours", type=float, default=1.0, help="time for all rows")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    given = parser.parse_args(words)
    out = given.out.resolve()
    complaint = explain_missing() or explain_folder(out)
    if complaint:
        print(complaint, file=sys.stderr)
        return 2
    end = time.monotonic() + 3600 * given.hours
    confine(out)
    if given.device == "cuda":
        choose_gpu()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        return play(out, given.device, end)
    except KeyboardInterrupt:
        print(f"interrupted; {out / 'gpu.md'} has the rows before", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(out / "work", ignore_errors=True)


def choose_gpu():
    """Make only the first GPU visible to all processes."""
    name = "CUDA_VISIBLE_DEVICES"
    os.environ[name] = os.environ.get(name, "0").partition(",")[0]


def play(out: Path, device: str, end: float) -> int:
    """Run all rows until ``end``, a time of ``time.monotonic``; return the exit code."""
    import gpu_play
    import gpu_rows

    place = gpu_rows.Place(out, device, is_small=device == "cpu")
    machine = gpu_play.play(gpu_rows.Row(gpu_rows.machine, 120, 1), place, 120)
    if machine.status != "ok":
        print("\n".join(machine.last), file=sys.stderr)
        return 2
    gpu_rows.write_data(place)
    results = gpu_play.play_rows(gpu_rows.list_rows(), place, end, machine.lines[0])
    print(f"the page is {out / 'gpu.md'}")
    return int(any(found.status in ("failed", "out of time") for found in results))


def explain_missing() -> str:
    """Return the command to type if the interpreter lacks packages, "" if it has all."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        wanted = tomllib.load(file)["project"]["dependencies"]
    chosen = [
        line
        for line in wanted
        if line.partition(">")[0].partition("=")[0].strip() in missing
    ]
    packages = " ".join(f"'{line}'" for line in chosen or missing)
    return (
        f"{sys.executable} lacks {', '.join(missing)}; type, with a network:\n"
        f"  {sys.executable} -m pip install {packages}\n"
        "or, without one, on a machine with a network and the same Python and system, "
        "and then here:\n"
        f"  pip download --dest wheels {packages}\n"
        f"  {sys.executable} -m pip install --no-index --find-links wheels {packages}"
    )


def explain_folder(out: Path) -> str:
    """Return the option to type if ``--out`` is in the checkout, else ""."""
    if out != PROJECT and PROJECT not in out.parents:
        return ""
    return f"--out {out} is in the checkout, which stays as it is; name another folder"


def confine(out: Path):
    """Let rows and their processes write only into ``out``, and find the tests'
    modules.
    """
    scratch = out / "work" / "tmp"
    shutil.rmtree(out / "work", ignore_errors=True)
    scratch.mkdir(parents=True)
    for name in ("log.txt", "lanes.json"):
        (out / name).unlink(missing_ok=True)
    folders = ("TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "CUDA_CACHE_PATH")
    os.environ |= dict.fromkeys(folders, str(scratch))
    os.environ["GIT_OPTIONAL_LOCKS"] = "0"  # git reads the checkout and writes no index
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # A process that has initialised CUDA cannot fork a process that uses a GPU.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    sys.dont_write_bytecode = True
    folders = [PROJECT, PROJECT / "tests", PROJECT / "tests" / "benchmarks"]
    sys.path[:0] = [str(folder) for folder in folders]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *given])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
