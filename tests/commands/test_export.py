from refusals import expect_refusal

from hpcfl.commands.export import export


def test_an_export_without_a_choice_of_models_is_refused(tmp_path):
    with expect_refusal("--client N, --all or --global"):
        export(tmp_path, [], False, None, "last", [], tmp_path / "out")
