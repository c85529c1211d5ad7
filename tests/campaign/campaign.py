"""Random faults against running experiments: after every one the job ends in time and an intact checkpoint is there, and in the
end each run has the digest of an undisturbed one.

    python tests/campaign/campaign.py --faults 100 --report results/campaign
"""

import argparse
import json
import os
import platform
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import faults
from job import Job

from hpcfl import plugins, provenance

HANG_AFTER = 10  # seconds of silence; runtime.hang_after
GRACE = 45.0  # seconds from a fault to the end of the job, on a loaded machine
FINISH = 600.0  # seconds that an undisturbed run may take
NO_CHECKPOINT = "no checkpoint is left to continue from"  # the only one there was had been damaged
DISK = "64m"  # size of the file system for results, where one can be mounted
EXPERIMENT = """
name = "campaign"
rounds = {rounds}
[data]
dataset = "digits"
[partition]
clients = 8
[model]
name = "mlp"
hidden = [32]
[training]
lr = 0.05
[method]
name = "{method}"
[checkpoint]
every = 2
[runtime]
hang_after = {hang_after}
"""


@dataclass
class Event:
    """One fault: what was done, how the job ended, and what is wrong with that, if anything."""

    method: str
    fault: str
    detail: str
    code: int | None
    seconds: float
    wrong: str = ""


@dataclass
class Campaign:
    """Runs one method after the other through random faults; ``events`` and ``wrong`` are the outcome."""

    folder: Path
    results: Path  # on the file system that can be filled
    kinds: list[str]
    rounds: int
    chance: random.Random
    events: list[Event] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _expected: str | None = None  # the digest of the undisturbed run
    _deck: list[str] = field(default_factory=list)  # kinds that are still to come, before all come again

    def method(self, name: str, count: int) -> None:
        """``count`` faults in one run, which then finishes undisturbed."""
        file = self.folder / f"{name}.toml"
        file.write_text(EXPERIMENT.format(method=name, rounds=self.rounds, hang_after=HANG_AFTER))
        self._expected = self.finish(file, self.folder / f"{name}-plain")
        folder = self.results / name
        for _ in range(count):
            self.strike(file, folder, name)
        self.complete(file, folder)

    def strike(self, file: Path, folder: Path, method: str) -> None:
        """One start and one fault at a random moment; a run that ends before it starts over."""
        job = Job(file, folder, self.chance.choice([2, 3]))
        if not job.wait_for_rounds(self.chance.randrange(4)):
            code = job.end(0)
            if code != 0 and NO_CHECKPOINT not in job.said():
                self.wrong.append(f"{method}: did not start again, code {code}: {job.said()[-300:]}")
            return self.complete(file, folder)
        time.sleep(self.chance.uniform(0, 0.3))
        before, kind = len(job.manifests()), self.draw()
        begun = time.monotonic()
        try:
            detail = faults.ALL[kind](job, self.chance)
        except ProcessLookupError:
            detail = "came too late"
        code = job.end(GRACE)
        job.ballast.unlink(missing_ok=True)
        event = Event(method, kind, detail, code, time.monotonic() - begun)
        event.wrong = self.judge(event, job, before)
        self.events.append(event)
        print(f"{len(self.events):4} {method:12} {kind:26} {detail:24} code {code} after {event.seconds:.1f} s {event.wrong}",
              flush=True)

    def draw(self) -> str:
        """A kind of fault; all kinds come equally often."""
        self._deck = self._deck or self.chance.sample(self.kinds, len(self.kinds))
        return self._deck.pop()

    def complete(self, file: Path, folder: Path) -> None:
        """Let the run finish and compare it; the next fault strikes a new one."""
        if self.finish(file, folder) != self._expected:
            self.wrong.append(f"{file.stem}: not the digest of the undisturbed run")
        subprocess.run(["rm", "-rf", folder], check=True)

    def judge(self, event: Event, job: Job, before: int) -> str:
        """What is wrong with how the job ended; nothing for what was promised."""
        if event.code is None:
            return f"still running after {GRACE:g} s: {job.said()[-300:]}"
        if before > event.fault.endswith("checkpoint") and not job.manifests():
            return "no intact checkpoint is left"
        if event.fault == "full disk" and event.code not in (0, 1):
            return f"a full disk must end a run with code 1: {job.said()[-300:]}"
        if event.fault == "full disk" and event.code == 1 and "No space left on device" not in job.said():
            return f"nothing said about the disk: {job.said()[-300:]}"
        if event.fault == "SIGSTOP of a rank" and event.code and "has been silent" not in job.said():
            return f"nothing said about the silent rank: {job.said()[-300:]}"
        return ""

    def finish(self, file: Path, folder: Path) -> str | None:
        """Run to the end; the digest. A run whose only checkpoint is damaged says so and is started over."""
        for options in ((), ("--fresh",)):
            job = Job(file, folder, 2, *options)
            code = job.end(FINISH)
            if code == 0:
                return job.manifests()[0][1].digest
            if NO_CHECKPOINT not in job.said():
                self.wrong.append(f"{file.stem}: does not finish, code {code}: {job.said()[-300:]}")
                return None
        return None


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of its own in ``folder``; False where that cannot be mounted."""
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


def run(methods: Sequence[str], count: int, rounds: int, seed: int) -> Campaign:
    """``count`` faults, spread evenly over the methods."""
    with tempfile.TemporaryDirectory() as name, small_disk(Path(name) / "disk") as mounted:
        kinds = [kind for kind in faults.ALL if mounted or kind != "full disk"]
        campaign = Campaign(Path(name), Path(name) / "disk", kinds, rounds, random.Random(seed))
        for position, method in enumerate(methods):
            while len(campaign.events) < count * (position + 1) // len(methods):
                campaign.method(method, count * (position + 1) // len(methods) - len(campaign.events))
        return campaign


def report(campaign: Campaign, seconds: float) -> str:
    """Markdown."""
    wrong = [*campaign.wrong, *(f"{event.method}, {event.fault}: {event.wrong}" for event in campaign.events if event.wrong)]
    methods = sorted({event.method for event in campaign.events})
    lines = [f"# {len(campaign.events)} random faults, {len(wrong)} of them with a wrong outcome", "",
             "After every fault the job had to end within the grace time with an intact checkpoint left, and every run had to "
             "finish afterwards with the digest of an undisturbed one.", "",
             f"Methods: {', '.join(methods)}.", "", "| fault | times | exit codes | slowest end |", "| --- | ---: | --- | ---: |"]
    for kind in faults.ALL:
        those = [event for event in campaign.events if event.fault == kind]
        if those:
            codes = {code: sum(event.code == code for event in those) for code in sorted({event.code or 0 for event in those})}
            lines.append(f"| {kind} | {len(those)} | {', '.join(f'{code} ({times}×)' for code, times in codes.items())} | "
                         f"{max(event.seconds for event in those):.1f} s |")
    return "\n".join([*lines, "", f"{seconds / 60:.0f} minutes on {os.cpu_count()} cores of {provenance.processor()}, commit "
                      f"{provenance.commit()}, Python {platform.python_version()}. Made with", "",
                      f"    python {shlex.join(sys.argv)}", "", *(f"* {one}" for one in wrong)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--methods", nargs="+", default=plugins.names("hpcfl.methods"))
    parser.add_argument("--rounds", type=int, default=60, help="of each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="folder for report.md and events.json")
    given = parser.parse_args()
    begun = time.monotonic()
    campaign = run(given.methods, given.faults, given.rounds, given.seed)
    text = report(campaign, time.monotonic() - begun)
    print(text)
    if given.report:
        given.report.mkdir(parents=True, exist_ok=True)
        (given.report / "report.md").write_text(text)
        (given.report / "events.json").write_text(json.dumps([vars(event) for event in campaign.events], indent=1) + "\n")
    sys.exit(1 if campaign.wrong or any(event.wrong for event in campaign.events) else 0)


if __name__ == "__main__":
    main()
