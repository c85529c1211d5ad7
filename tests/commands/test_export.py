import pytest

from hpcfl.commands.export import export
from hpcfl.errors import UserError


def test_an_export_without_a_choice_of_models_is_refused(tmp_path):
    with pytest.raises(UserError, match="--client N, --all or --global"):
        export(tmp_path, [], False, None, "last", [], tmp_path / "out")
