# Sourced by launch/quickstart.sh and tests/run.sh: makes a virtual environment in the project, installs all packages and puts it
# first on PATH. Sets `project` (the project's folder). Reinstalls only if pyproject.toml, the folder or Python has changed.

project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
environment="$project/.venv"

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v -- "$candidate"
            return
        fi
    done
    echo "hpcfl needs Python 3.11 or newer; none was found. Name one: PYTHON=/path/to/python bash $0" >&2
    return 1
}

wanted_stamp() {  # what the installation depends on
    echo "$project"
    "$environment/bin/python" -c 'import sys; print(sys.version)'
    cat -- "$project/pyproject.toml"
}

ensure_environment() {
    local stamp="$environment/hpcfl-installed" python
    if [ -f "$stamp" ] && [ "$(head -n 1 -- "$stamp")" != "$project" ]; then
        echo "The project's folder was moved: its virtual environment has to be made anew"
        rm -rf -- "$environment"
    fi
    if [ ! -x "$environment/bin/python" ]; then
        python=$(find_python) || return 1
        echo "Making a virtual environment in $environment ($("$python" --version))"
        # Without pip, which some systems split off into a package of its own; it is installed with the rest.
        "$python" -m venv --without-pip "$environment" || return 1
    fi
    if [ "$(cat -- "$stamp" 2>/dev/null)" = "$(wanted_stamp)" ]; then
        echo "Using the virtual environment in $environment"
    else
        python=$(find_python) || return 1
        echo "Installing hpcfl, an MPI runtime and the test tools into it: 2 GB or more, once, a minute or two"
        # pip compiles one file after the other, compileall as many at once as there are cores.
        "$python" -m pip --python "$environment/bin/python" install --quiet --no-compile --upgrade-strategy only-if-needed \
            pip --editable "$project[mpi,test]" || return 1
        "$environment/bin/python" -m compileall -qq -j 0 "$environment/lib" || true  # libraries have templates that are no Python
        wanted_stamp > "$stamp" || return 1
    fi
    export PATH="$environment/bin:$PATH"
}

ensure_environment || exit 1
