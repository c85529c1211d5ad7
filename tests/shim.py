"""Program that a launcher starts in place of hpcfl. It passes its arguments and
descriptors to the zygote, forwards signals, and ends as the process that the zygote
forked.

It lives a few milliseconds after ``python -S -E``. If it is killed, the zygote kills
the forked process too.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def main():
    descriptors = [
        0,
        1,
        2,
        *(int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ),
    ]
    zygote = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote.connect(sys.argv[1])
    request = {
        "arguments": sys.argv[2:],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "descriptors": descriptors,
    }
    socket.send_fds(zygote, [json.dumps(request).encode()], descriptors)
    pid = int(zygote.recv(100))
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(pid, number))
    leave(os.waitstatus_to_exitcode(int(zygote.recv(100))))


def leave(code: int):
    """Exit with a code, or by the signal of a negative code."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
