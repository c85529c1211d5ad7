"""All ranks fail together, and have the same settings."""

import pytest
from in_threads import on_ranks

from hpcfl.communication.agreement import agreed, require_equal
from hpcfl.errors import RunFailure, UserError


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, 1, 1], None),
        ([1, 1, 2], "seed: 1 on rank 0, 2 on rank 2; do so"),
        ([1, None, 1], "seed: 1 on rank 0, null on rank 1"),
        ([1, "1", 1], 'seed: 1 on rank 0, "1" on rank 1'),
    ],
)
def test_a_setting_that_differs_is_named_on_all_ranks(values, words):
    said = []

    def compare(communicator):
        value = values[communicator.rank]
        settings = {"seed": value, "partition.seed": value, "lr": 0.1}
        try:
            require_equal(communicator, settings, "do so")
        except UserError as error:
            said.append(str(error))

    on_ranks(3, compare)
    assert len(set(said)) == (words is not None)
    assert words is None or (len(said) == 3 and said[0].startswith(words))


def test_a_key_that_a_rank_lacks_is_named():
    def compare(communicator):
        settings = {"seed": 1} if communicator.rank else {}
        require_equal(communicator, settings, "do so")

    with pytest.raises(UserError, match="seed: no value on rank 0, 1 on rank 1"):
        on_ranks(2, compare)


@pytest.mark.parametrize(
    "cause", [MemoryError("8 GiB"), RuntimeError("can't allocate memory")]
)
def test_a_lack_of_memory_is_no_bad_input(cause):
    def read(communicator):
        with agreed(communicator):
            if communicator.rank:
                try:
                    raise cause
                except Exception as error:
                    raise UserError("own.csv: is damaged") from error

    with pytest.raises(RunFailure, match=str(cause)):
        on_ranks(2, read)


def test_other_bad_input_stays_so():
    def read(communicator):
        with agreed(communicator):
            raise UserError("own.csv: is damaged") from FileNotFoundError()

    with pytest.raises(UserError, match="damaged"):
        on_ranks(2, read)
