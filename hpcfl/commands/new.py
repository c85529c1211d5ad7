"""``hpcfl new``: write commented files to start from."""

import re
import sys
from pathlib import Path
from string import Template

from hpcfl.errors import UserError

TEMPLATES = Path(__file__).with_name("templates")
# By kind the suffix of the file, and a command that tries it.
KINDS = {
    "experiment": (".toml", "hpcfl run {file}"),
    "method": (".py", "hpcfl methods {name}:{cls}"),
    "source": (".py", "hpcfl check FILE.toml --set data.dataset={name}:source"),
    "score": (".py", "hpcfl scores {name}:{cls}"),
    "profile": (".toml", "hpcfl submit FILE.toml --profile {file} --dry-run"),
}
NAME = re.compile(r"[A-Za-z]\w*")


def write_new(kind: str, name: str) -> list[str]:
    """Write a new file into the current folder and return lines to print.

    Args:
        kind: Key of KINDS.
        name: Name of the file without suffix; also the name of the class in it.

    Raises:
        UserError: If the name is not an identifier or hides a module of Python, or the
            file exists or cannot be written.
    """
    ending, command = KINDS[kind]
    name = name.removesuffix(ending)
    if not NAME.fullmatch(name):
        raise UserError(
            f"hpcfl new {kind} {name}: use letters, digits and _ in a name, as in my_{kind}"
        )
    if ending == ".py" and name in sys.stdlib_module_names:
        raise UserError(
            f"hpcfl new {kind} {name}: is the name of a module of Python; choose another name"
        )
    path = Path(name + ending)
    cls = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    template = Template((TEMPLATES / f"{kind}.txt").read_text(encoding="utf-8"))
    text = template.substitute(name=name, file=path.name, Class=cls)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path}: exists already; choose another name") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    return [
        f"wrote {path}",
        "next: " + command.format(name=name, file=path.name, cls=cls),
    ]
