"""Names and numbers from a user's file in comparisons and messages."""

from hpcfl.files import wording


def test_a_long_name_is_shortened_and_printable():
    assert wording.shorten("a\nb") == "a\\nb"
    assert len(wording.shorten("x" * 10**6)) == wording.LETTERS + 1


def test_many_names_are_counted():
    assert wording.list_names(list("abcdefg")) == "a, b, c, d, e and 2 more"
    assert wording.list_names([]) == ""


def test_two_spellings_of_a_name_are_one():
    assert wording.fold("Cat 1") == wording.fold("cat1")
    assert wording.fold("\u00e9") == wording.fold("e\u0301")
    assert wording.fold("1") != wording.fold("01")
