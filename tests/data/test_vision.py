"""torchvision takes a second to import, so only the readers that need it import it,
when they are called.
"""

import ast
from pathlib import Path

import hpcfl


def test_no_module_imports_torchvision_at_its_top():
    package = Path(hpcfl.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in getattr(node, "names", [])]
            names.append(getattr(node, "module", None) or "")
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            if is_import and path.name != "vision.py":
                assert not {"torchvision", "hpcfl.data.vision"} & set(names), path


def test_transforms_work_without_the_compiled_operators(torchvision):
    image = torchvision.transforms.functional.to_pil_image
    assert image(torchvision.torch.zeros(3, 4, 5)).size == (5, 4)
