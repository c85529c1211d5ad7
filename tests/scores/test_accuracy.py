"""Accuracy."""

from counted import block_of, check, number


def test_four_of_six_are_right():
    check("accuracy", 4 / 6)


def test_outputs_that_are_no_class_are_wrong_and_belong_to_none():
    block = block_of(([0, 1], [0, 5]), outputs=6)
    assert number("accuracy", block) == number("macro_f1", block) == [0.5]
    assert block.predicted_by_class.tolist() == [[1, 0, 0, 0]]
