#!/usr/bin/env bash
# All tests: installs what is needed into .venv, looks at the code with ruff and mypy, then runs pytest.
# Usage: bash tests/run.sh [--quick] [options of pytest]
#   --quick: every module, but no test marked mpi, slurm, gpu or slow.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../launch/environment.sh"

cd -- "$project"
# Three files at a time for two cores, in their order: those of tests/cluster mostly wait for Slurm, so they
# leave their core to others and may not come last and alone.
options=(-n 3 --dist loadfile --no-loadscope-reorder)
if [[ "${1-}" == --quick ]]; then
    options+=(-m "not (mpi or slurm or gpu or slow)")
    shift
fi
echo "Running: python -m ruff check hpcfl tests launch slurm"
python -m ruff check hpcfl tests launch slurm
echo "Running: python -m mypy"
python -m mypy
echo "Running: python -m pytest ${options[*]} $*"
exec python -m pytest "${options[@]}" "$@"
