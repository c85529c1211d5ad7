import sys

from refusals import expect_refusal

from hpcfl.experiment import user_code


def fail():
    raise ValueError("one\ntwo")


def test_an_error_of_a_users_code_has_its_file_and_line():
    line = fail.__code__.co_firstlineno + 1
    with (
        expect_refusal(rf"test_user_code\.py:{line}: ValueError: one two"),
        user_code.locate_errors(),
    ):
        fail()


def test_code_that_exits_has_its_file_and_line():
    with (
        expect_refusal(r"test_user_code\.py:\d+: SystemExit"),
        user_code.locate_errors(),
    ):
        sys.exit()


def test_definitions_are_found_in_users_files_alone():
    line = fail.__code__.co_firstlineno
    assert user_code.find_definition(fail).endswith(f"test_user_code.py:{line}")
    assert user_code.find_definition(user_code.is_own) is None
