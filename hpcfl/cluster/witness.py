"""The output of a job's ranks: passed on as it comes, and read for which rank failed
and why.
"""

import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from hpcfl.files import atomic

RANK_LINE = re.compile(
    r"(rank (\d+) on .*)"
)  # of ``rank_list``: who and where a rank is
REASON = re.compile(
    r"hpcfl: (.*)"
)  # said by a rank that failed; the first such line is the cause
# Said by srun of a rank that died, "srun: error: n2: task 2: Killed"; the first one
# died by itself.
DEATH = re.compile(r"srun: error: \S+: tasks? (\d+).*?: (.*)")
# seconds for the end of the output, which an orphan that holds the pipe could delay for
# ever
PATIENCE = 5.0


class Witness:
    """Starts a command as ``process`` and listens to its output in a thread of its own."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises RunFailure if there is no such program."""
        with atomic.explained(Path(command[0])):
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        self._ranks: dict[str, str] = {}
        self._reason = ""
        self._death = ""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def reason(self) -> str:
        """Why the ranks failed: what the first of them said itself, else what srun said
        of it; else "".

        To be called when the process has ended; waits until its last output is passed
        on.
        """
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
        """Keep what a line of output says about ranks."""
        if match := RANK_LINE.match(line):
            self._ranks[match[2]] = match[1]
        elif match := REASON.match(line):
            self._reason = self._reason or match[1]
        elif match := DEATH.match(line):
            self._death = (
                self._death
                or f"{self._ranks.get(match[1], f'rank {match[1]}')}: {match[2]}"
            )
