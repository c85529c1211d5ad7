#!/usr/bin/env bash
# All tests: installs what is needed into .venv, looks at the code with ruff and mypy, then runs pytest.
# Usage: bash tests/run.sh [--quick] [options of pytest]
#   --quick: every module, but no test marked mpi, slurm, gpu or slow.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../launch/environment.sh"

cd -- "$project"
# Files in their order, four at a time: two of the first wait for Slurm most of the time.
options=(-n 4 --dist loadfile --no-loadscope-reorder)
if [[ "${1-}" == --quick ]]; then
    options[1]=2
    options+=(-m "not (mpi or slurm or gpu or slow)")
    shift
fi
unset PYTHONDONTWRITEBYTECODE  # else every process that a test starts compiles the whole package anew
echo "Running: python -m ruff check hpcfl tests launch slurm"
python -m ruff check hpcfl tests launch slurm
echo "Running: python -m ruff format --check hpcfl tests launch slurm"
python -m ruff format --check hpcfl tests launch slurm
# Collecting writes the tests' byte code once, beside mypy, which takes one core; else each worker of pytest does.
python -m pytest --collect-only -q >/dev/null 2>&1 &
echo "Running: python -m mypy"
python -m mypy
wait
echo "Running: python -m pytest ${options[*]} $*"
exec python -m pytest "${options[@]}" "$@"
