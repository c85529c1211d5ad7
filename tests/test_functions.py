"""No function of the package is so long that it cannot be read at once."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hpcfl"
LINES = 40


def test_no_function_has_more_than_forty_lines():
    functions = [
        (path, node)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [
        f"{path.relative_to(PACKAGE)}: {node.name}, {lines} lines"
        for path, node in functions
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > LINES
    ] == []
