"""Check of the error line after a mistake of the user."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hpcfl.errors import UserError


@contextmanager
def expect_refusal(
    pattern: str | None = None,
) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a ``UserError`` of one line that matches a regular expression."""
    with pytest.raises(UserError, match=pattern) as caught:
        yield caught
    assert "\n" not in str(caught.value)
