"""Random faults at any moment and place. After every fault the job ends in time, all
commands report the same about it, and finally each run has the digest and all metrics
of an undisturbed one.

    python tests/campaign/campaign.py --faults 100 --seed 1 --report results/campaign
    python tests/campaign/campaign.py --only 1/17
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

sys.path.append(str(Path(__file__).parents[1]))  # for the zygote

import reporting
import torch
from episode import KINDS, NEEDS_RANKS, NEEDS_ROOT, Event, Stage
from zygote import Zygote

import hpcfl
from hpcfl.experiment import plugins

# rule of an asynchronous server, and its method
ASYNCHRONOUS = ("fedbuff ditto", "fedbuff fedrep", "fedasync fedavg")
DISK = "16m"  # size of the file system for results, if one can be mounted


@contextmanager
def stage(
    zygote: Zygote,
    methods: Sequence[str],
    kinds: Sequence[str] = tuple(KINDS),
    ranks: int = 5,
    faults: int = 3,
) -> Iterator[Stage]:
    """Prepare the stage of episodes, with a small disk if one can be mounted; kinds of
    faults that are impossible here are left out.
    """
    disk = Path(tempfile.mkdtemp(dir=zygote.folder), "disk")
    disk.parent.chmod(0o755)
    with small_disk(disk) as mounted:
        possible = [
            kind
            for kind in kinds
            if (mounted or kind not in NEEDS_ROOT)
            and (ranks > 1 or kind not in NEEDS_RANKS)
            and (kind != "another user" or all(map(others_reach, (hpcfl, torch))))
        ]
        yield Stage(zygote, disk, methods, possible, ranks, faults)


def others_reach(module: ModuleType) -> bool:
    """Return whether other users may read the place of a module: some modules are
    imported only when they are needed.
    """
    return all(
        folder.stat().st_mode & 0o005 == 0o005
        for folder in Path(str(module.__file__)).parents
    )


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system in ``folder``; return False if this is impossible."""
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder],
            capture_output=True,
        ).returncode
        == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def run(
    on: Stage, seeds: Iterator[str], count: int, events: list[Event]
) -> list[Event]:
    """Run episodes with at least ``count`` faults, which are added to ``events`` one by
    one.
    """
    while len(events) < count and (seed := next(seeds, None)) is not None:
        for event in on.play(seed):
            events.append(event)
            print(
                f"{len(events):4} {seed:8} {event.method:12} {event.kind:30} {event.moment:32} "
                f"{event.detail:30} code {event.code} after {event.seconds:.1f} s {'; '.join(event.wrong)}",
                flush=True,
            )
    return events


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="SEED/NUMBER", help="replay one episode")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[*plugins.list_names("hpcfl.methods"), *ASYNCHRONOUS],
        help="also 'RULE METHOD' of a server that waits for nobody",
    )
    parser.add_argument(
        "--kinds", nargs="+", default=list(KINDS), choices=KINDS, metavar="KIND"
    )
    parser.add_argument("--ranks", type=int, default=5, help="the most")
    parser.add_argument(
        "--report",
        type=Path,
        help="folder to whose README.md and events.json this is added",
    )
    given = parser.parse_args()
    seeds = (
        iter([given.only])
        if given.only
        else (f"{given.seed}/{number}" for number in range(1 << 60))
    )
    begun = time.monotonic()
    events: list[Event] = []
    try:
        with tempfile.TemporaryDirectory() as folder, Zygote(Path(folder)) as zygote:
            zygote.folder.chmod(0o755)
            with stage(zygote, given.methods, given.kinds, given.ranks) as on:
                run(on, seeds, given.faults, events)
    finally:  # also after an interruption of the campaign
        if given.report and events:
            reporting.add(
                given.report,
                events,
                time.monotonic() - begun,
                shlex.join(["python", *sys.argv]),
            )
    sys.exit(any(event.wrong for event in events))


if __name__ == "__main__":
    main()
