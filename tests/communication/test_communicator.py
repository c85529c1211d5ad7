"""Requirements for every communicator, and its information from MPI; ``tests/mpi``
tests exchanges between real ranks.
"""

import pytest
from in_threads import on_ranks
from refusals import expect_refusal

from hpcfl.communication.communicator import (
    Communicator,
    agreed,
    require_equal,
)
from hpcfl.errors import RunFailure, UserError


def test_a_communicator_has_to_define_every_exchange():
    assert Communicator.__abstractmethods__ == {
        "collective_block",
        "bcast",
        "gather",
        "allgather",
        "bcast_row",
        "scatter_rows",
        "gather_rows",
        "allreduce_max_array",
        "reduce_sum",
        "watch",
        "finalize",
        "abort",
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, 1, 1], None),
        ([1, 1, 2], "seed: 1 on rank 0, 2 on rank 2; "),
        ([1, None, 1], "seed: 1 on rank 0, null on rank 1"),
        ([1, "1", 1], 'seed: 1 on rank 0, "1" on rank 1'),
    ],
)
def test_a_setting_that_differs_is_named_on_all_ranks(values, words):
    messages = []

    def compare(communicator):
        value = values[communicator.rank]
        settings = {"seed": value, "partition.seed": value, "lr": 0.1}
        try:
            require_equal(communicator, settings, "do so")
        except UserError as error:
            messages.append(str(error))

    on_ranks(3, compare)
    assert len(set(messages)) == (words is not None)
    assert words is None or (len(messages) == 3 and messages[0].startswith(words))


def test_a_key_that_a_rank_lacks_is_named():
    def compare(communicator):
        settings = {"seed": 1} if communicator.rank else {}
        require_equal(communicator, settings, "do so")

    with expect_refusal(r"seed: .* rank 0, 1 on rank 1"):
        on_ranks(2, compare)


@pytest.mark.parametrize(
    "cause", [MemoryError("8 GiB"), RuntimeError("can't allocate memory")]
)
def test_a_lack_of_memory_is_a_run_failure(cause):
    def read(communicator):
        with agreed(communicator):
            if communicator.rank:
                try:
                    raise cause
                except Exception as error:
                    raise UserError("own.csv: is damaged") from error

    with pytest.raises(RunFailure, match=str(cause)):
        on_ranks(2, read)


@pytest.mark.parametrize("names_rank", [True, False])
def test_the_line_and_the_cause_of_another_ranks_error_reach_rank_0(names_rank):
    def fail(communicator):
        with agreed(communicator, names_rank):
            if communicator.rank:
                raise UserError("lr = 1: is wrong") from ZeroDivisionError("by hand")

    def catch(communicator):
        try:
            fail(communicator)
        except UserError as error:
            return str(error), str(error.__cause__)

    line, cause = on_ranks(2, catch)
    assert line == ("rank 1: " if names_rank else "") + "lr = 1: is wrong"
    assert "ZeroDivisionError: by hand" in cause
