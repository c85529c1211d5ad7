"""A line of text in a notebook that changes, without widgets."""

import sys
from typing import Any


class Line:
    """A line of text below the cell that makes it."""

    def __init__(self) -> None:
        self._display: Any = None  # what IPython gives for changing it

    def show(self, text: str) -> None:
        """Put this text where the line's earlier one stood."""
        from IPython.display import display

        content = {"text/plain": text}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)


def is_shown() -> bool:
    """Tell whether standard output appears below a notebook's cell."""
    kernel = sys.modules.get("ipykernel.iostream")
    return kernel is not None and isinstance(sys.stdout, kernel.OutStream)
