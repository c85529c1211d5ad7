"""Output without a reader: the program continues and detects it."""

import io
import shlex
import subprocess
import sys

import pytest

from hpcfl.files import output

PROGRAM = """
import sys
from hpcfl.files import output
output.guard()
with open("first", "w") as file:  # would be standard output where that is closed
    for number in range(10_000):
        print(number)
    print("error", file=sys.stderr)
    print("caf\\udce9")  # a path that is no text
    file.write(str(output.find_failure()))
"""


@pytest.fixture
def under_bash(tmp_path):
    """Return ``under_bash(line)``, which returns the last line of PROGRAM's output and
    its exit code.
    """

    def run(line: str) -> subprocess.CompletedProcess:
        (tmp_path / "program.py").write_text(PROGRAM)
        return subprocess.run(
            [
                "bash",
                "-c",
                f"{shlex.quote(sys.executable)} program.py {line}; exit ${{PIPESTATUS[0]}}",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize(
    "line, why",
    [
        ("", "None"),
        ("2>&-", "None"),
        ("2>/dev/full", "None"),
        (">/dev/full", "[Errno 28] No space left on device"),
        (">&-", "[Errno 9] Bad file descriptor"),
        ("<&- >&- 2>&-", "[Errno 9] Bad file descriptor"),
        ("| head -1", "[Errno 32] Broken pipe"),
    ],
)
def test_a_failing_output_does_not_end_the_command(under_bash, tmp_path, line, why):
    done = under_bash(line)
    assert done.returncode == 0
    assert (tmp_path / "first").read_text() == why
    assert done.stderr == ("" if "2>" in line else "error\n")
    if why == "None":
        assert done.stdout.splitlines()[-2:] == ["9999", r"caf\udce9"]


def test_a_note_is_kept_of_a_failure_only(tmp_path, monkeypatch):
    output.keep_note(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with open("/dev/full", "wb", buffering=0) as full:
        raw = output.Unfailing(full.fileno(), "w", closefd=False)
        assert raw.write(b"lost") == 4
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(raw)))
    output.keep_note(tmp_path)
    (note,) = tmp_path.iterdir()
    assert note.read_text().endswith(
        " UTC: standard output could not be written: No space left on device\n"
    )


def test_a_reason_that_is_no_text_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv(output.REASON, str(tmp_path / "reason"))
    output.complain("caf\udce9: no such file\nline 2")
    assert (tmp_path / "reason").read_text() == r"caf\udce9: no such file"
