#!/usr/bin/env bash
# The first federated run: installs all packages into .venv, then runs four methods on real data over MPI.
# Usage: bash launch/quickstart.sh [options of `hpcfl run`, such as --fresh]
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

if [ -t 1 ]; then
    # Under mpiexec the output of rank 0 is a pipe: say that a terminal is at its end, and how wide it is.
    export TTY_COMPATIBLE=1
    COLUMNS=$(tput cols 2>/dev/null || echo 80)
    export COLUMNS
fi

results="$project/runs/quickstart"
echo "Running: mpiexec -n 3 hpcfl run launch/quickstart.toml (one server, two workers); results in $results"
exec mpiexec -n 3 hpcfl run "$project/launch/quickstart.toml" --out "$results" "$@"
