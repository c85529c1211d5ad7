"""Final digests of every method, in two partitions, with all clients and with half of
them.

``python tests/digests.py`` prints the cases whose digests differ from ``digests.json``.
``--write`` replaces the file, and ``--add`` adds the digests of new methods. ``mpiexec
-n 3 python tests/digests.py`` does the same on three ranks, with the same digests. The
last bits may depend on the processor and on torch, so only the platforms in the file
are compared; ``--write`` adds a platform with the same digests. A commit that changes
results intentionally writes the file again and explains the change.
"""

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpcfl.communication.communicator import Communicator
from hpcfl.communication.connection import connect

KEPT = Path(__file__).with_name("digests.json")
# The method's default keys would take a minute of steps.
LONG = {"creff"}
EVEN = [[6, 6, 6, 6], [5, 5, 5, 5], [7, 6, 5, 4], [4, 5, 6, 7], [6, 5, 6, 5]]


def cases() -> list[tuple[str, str, float]]:
    """Yield method, partition and the fraction of participating clients."""
    from hpcfl.experiment import plugins

    return [
        (method, partition, fraction)
        for method in plugins.list_names("hpcfl.methods")
        for partition in ("uneven", "even")
        for fraction in (1.0, 0.5)
        if fraction == 1.0 or method != "apple"  # requires all clients
    ]


def arguments_of(
    case: tuple[str, str, float],
) -> tuple[dict[str, Any], list[list[int]], dict[str, Any]]:
    """Return the arguments of ``tiny.table`` for the three rounds of a case: the
    method, the counts and further sections.
    """
    import tiny
    from every_method import short

    name, partition, fraction = case
    method = short(name) if name in LONG else {"name": name}
    counts = EVEN if partition == "even" else tiny.COUNTS
    return method, counts, {"participation": {"fraction": fraction}}


def digest_of(
    case: tuple[str, str, float], folder: Path, communicator: Communicator
) -> str:
    """Run three rounds of a case in an empty ``folder``, and return the digest of all
    models on every rank. Collective.
    """
    import tiny

    from hpcfl.commands.run import run
    from hpcfl.experiment import config
    from hpcfl.storage.manifest import find_latest

    method, counts, sections = arguments_of(case)
    table = tiny.table(method, counts, **sections, checkpoint={"every": 3})
    with contextlib.redirect_stdout(io.StringIO()):
        run(config.parse(table), folder, communicator)
    digest = (
        find_latest(folder / "checkpoints").digest if communicator.is_server else None
    )
    return communicator.bcast(digest)


def platform_of_digests() -> dict[str, Any]:
    """Return the properties of the machine on which the last bits depend."""
    import torch

    numbers = dict.fromkeys(("cpu family", "model", "model name"), "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in numbers:
                numbers[name.strip()] = value.strip()
    vectors = torch.backends.cpu.get_cpu_capability()
    return {**numbers, "vectors": vectors, "torch": torch.__version__}


def name_of(case: tuple[str, str, float]) -> str:
    """Return the key of a case in the file."""
    return " ".join(map(str, case))


def main() -> int:
    """Run all cases, compare or write them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--add", action="store_true", help="play and write new cases only")
    how.add_argument("--write", action="store_true", help="write all cases again")
    options = parser.parse_args()
    world = connect()
    kept = json.loads(KEPT.read_text(encoding="utf-8"))["digests"]
    known = kept if options.add else {}
    digests = dict(known)
    with TemporaryDirectory() as place:
        folder = Path(world.bcast(place))
        for number, case in enumerate(cases()):
            if name_of(case) not in known:
                digests[name_of(case)] = digest_of(case, folder / str(number), world)
    code = 0
    if world.is_server:
        finish = add if options.add else write if options.write else compare
        code = finish(digests)
    code = world.bcast(code)
    world.finalize()
    return code


def add(digests: dict[str, str]) -> int:
    """Add digests to the file; return 2 on a platform without digests in the file."""
    stored = json.loads(KEPT.read_text(encoding="utf-8"))
    if platform_of_digests() not in stored["platforms"]:
        return compare(digests)
    store(stored["platforms"], digests)
    return 0


def write(digests: dict[str, str]) -> int:
    """Replace the file; a platform with the same digests is added to the platforms in
    it.
    """
    stored = json.loads(KEPT.read_text(encoding="utf-8"))
    platforms = [platform_of_digests()]
    if digests == stored["digests"]:
        platforms += [other for other in stored["platforms"] if other not in platforms]
    store(platforms, digests)
    return 0


def store(platforms: list[dict[str, Any]], digests: dict[str, str]):
    """Write the file."""
    content = {"platforms": platforms, "digests": digests}
    KEPT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def compare(digests: dict[str, str]) -> int:
    """Print the differences from the file; return 1 if there are any, and 2 if no case
    could be compared.
    """
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    if platform_of_digests() not in kept["platforms"]:
        print(f"not compared: {platform_of_digests()} is not among {kept['platforms']}")
        return 2
    different = sorted(
        name
        for name in digests.keys() | kept["digests"].keys()
        if digests.get(name) != kept["digests"].get(name)
    )
    for name in different:
        print(f"{name}: {digests.get(name)}, was {kept['digests'].get(name)}")
    print(f"{len(digests)} digests, {len(different)} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
