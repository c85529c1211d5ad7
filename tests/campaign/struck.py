"""The command, in a process that is prepared for a fault."""

import inside

from hpcfl.__main__ import main

inside.prepare()
main()
