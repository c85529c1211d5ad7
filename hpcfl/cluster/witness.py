"""The ranks of a job as their supervisor hears them: what they say is passed on, and read for who
failed and why."""

import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from hpcfl.files import atomic

RANK_LINE = re.compile(r"(rank (\d+) on .*)")  # a rank's line of rank_list.rank_list
REASON = re.compile(r"hpcfl: (.*)")  # a rank that could speak; the first is the cause
# "srun: error: n2: task 2: Killed"; the first died by itself
DEATH = re.compile(r"srun: error: \S+: tasks? (\d+).*?: (.*)")
PATIENCE = 5.0  # seconds for the last words, which an orphan that holds the pipe open could delay for ever


class Witness:
    """Starts ``command`` as ``process``. Raises RunFailure where there is no such program."""

    def __init__(self, command: Sequence[str]) -> None:
        with atomic.explained(Path(command[0])):
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            text=True, errors="replace")
        self._ranks: dict[str, str] = {}
        self._reason = ""
        self._death = ""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def reason(self) -> str:
        """Once the process has ended and its last words are passed on: why, as far as a rank itself or the
        launcher of one that died said so; else empty."""
        self._listener.join(PATIENCE)
        return self._reason or self._death

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                sys.stdout.write(line)
                sys.stdout.flush()
                self._note(line)

    def _note(self, line: str) -> None:
        if found := RANK_LINE.match(line):
            self._ranks[found[2]] = found[1]
        elif found := REASON.match(line):
            self._reason = self._reason or found[1]
        elif found := DEATH.match(line):
            self._death = self._death or f"{self._ranks.get(found[1], f'rank {found[1]}')}: {found[2]}"
