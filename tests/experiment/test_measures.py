import pytest
from refusals import expect_refusal

from hpcfl.experiment import measures
from hpcfl.experiment.sections import Evaluation, Training


@pytest.mark.parametrize(
    ("best_by", "validation", "column"),
    [
        (None, 0.0, "pre"),
        (None, 0.1, "validation/pre"),
        ("test", 0.1, "pre"),
        ("validation", 0.1, "validation/pre"),
    ],
)
def test_the_column_that_chooses_the_best_round(best_by, validation, column):
    evaluation, training = {"best_by": best_by}, {"validation": validation}
    config = {"evaluation": evaluation, "training": training}
    assert measures.find_chosen_column(config, "pre") == column


def test_a_choice_on_held_out_samples_needs_some():
    evaluation = Evaluation(best_by="validation")
    with expect_refusal(r"training\.validation"):
        measures.check_best_by(evaluation, Training())
    measures.check_best_by(evaluation, Training(validation=0.1))
