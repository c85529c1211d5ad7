"""The command, in a process that is ready to be struck."""

import inside

from hpcfl.__main__ import main

inside.prepare()
main()
