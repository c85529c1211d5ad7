"""Rooms of the package: hpcfl/README.md lists them from top to bottom, and a room
imports only from rooms below it.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "hpcfl"
MAP = (PACKAGE / "README.md").read_text(encoding="utf-8")
ROOMS = re.findall(r"^(?:[├└]── )?(\w+)/ ", MAP, re.MULTILINE)
ROOT = ROOMS[0]
TESTS = Path(__file__).parent
ENGINE = re.findall(
    r"^[├└]── (\w+)/ ", MAP.partition("│   the engine,")[2], re.MULTILINE
)


def room(module: str) -> str:
    """Return the room of a module, such as ``files`` for ``hpcfl.files.atomic``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else ROOT


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
    }


@cache
def statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


@cache
def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, also inside functions."""
    known, found = modules(), set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            found |= {
                name
                if (name := f"{node.module}.{alias.name}") in known
                else node.module
                for alias in node.names
            }
    return {name for name in found if name in known}


def has_test_file(module: str) -> bool:
    """Return whether a module has a test file of its name in its room."""
    stem, name = modules()[module].stem.strip("_"), room(module)
    folder = TESTS if name == ROOT else TESTS / name
    # Names of test files must be unique; the second one begins with its room.
    files = (f"test_{stem}.py", f"test_{name}_{stem}.py")
    return any(found for file in files for found in folder.rglob(file))


def test_every_module_has_a_test_file_of_its_name():
    named = [name for name, path in modules().items() if path.name != "__init__.py"]
    assert [name for name in named if not has_test_file(name)] == []


def test_no_two_test_files_have_one_name():
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_the_list_has_every_room_once():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(ROOMS) == sorted({ROOT, *folders})


def test_the_root_contains_only_modules_for_users():
    assert {path.name for path in PACKAGE.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "api.py",
        "cli.py",
        "errors.py",
    }


@pytest.mark.parametrize("name", ROOMS)
def test_no_room_imports_from_a_higher_room(name):
    wrong = [
        f"{module} imports {other}"
        for module, path in modules().items()
        if room(module) == name
        for other in imports(path)
        if ROOMS.index(room(other)) < ROOMS.index(name)
        and other not in ("hpcfl", "hpcfl.errors")
    ]
    assert not wrong


def test_the_engine_imports_no_module_outside_it():
    """No import of the engine names a module of the surroundings, not even inside
    functions.
    """
    assert "simulation" in ENGINE and "clock" not in ENGINE
    wrong = [
        f"{module} imports {other}"
        for module, path in modules().items()
        if room(module) in ENGINE
        for other in imports(path)
        if room(other) not in ENGINE and other not in ("hpcfl", "hpcfl.errors")
    ]
    assert not wrong


def test_no_modules_import_each_other_in_a_circle():
    edges = {
        module: imports(path) - {module, "hpcfl"}
        for module, path in modules().items()
        if module != "hpcfl"
    }
    while leaves := [module for module, others in edges.items() if not others]:
        for leaf in leaves:
            del edges[leaf]
        for others in edges.values():
            others.difference_update(leaves)
    assert not edges


def test_only_one_module_imports_mpi():
    assert {
        module
        for module, path in modules().items()
        for node in statements(path)
        if "mpi4py" in ast.unparse(node)
    } == {"hpcfl.communication.mpi"}


def test_kernels_are_imported_only_through_their_package():
    """Other rooms import only ``hpcfl.clients.execution``, not its modules."""
    door = "hpcfl.clients.execution"
    wrong = [
        f"{module} imports {other}"
        for module, path in modules().items()
        if not module.startswith(door)
        for other in imports(path)
        if other.startswith(f"{door}.")
    ]
    assert not wrong
