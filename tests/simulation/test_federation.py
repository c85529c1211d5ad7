"""What begins anew in each round (methods-1.md §2), and a rank that fails."""

import numpy as np
import pytest
import tiny

from hpcfl.errors import RankFailure, RunFailure
from hpcfl.rows import mixing


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_the_state_of_optimisers_is_reset_every_round(federate, optimizer):
    """With one full batch a round momentum never acts, and Adam's every step has the
    length of its first, lr.
    """
    whole = {"batch_size": 100, "lr": 0.01}
    played = federate("local", rounds=4, training={**whole, **optimizer})
    moved = (
        played.clients["model"]
        - federate("local", rounds=3, training={**whole, **optimizer}).clients["model"]
    )
    if "momentum" in optimizer:
        assert (
            played.clients["model"]
            == federate("local", rounds=4, training=whole).clients["model"]
        ).all()
    else:
        trained = moved != 0
        np.testing.assert_allclose(moved[trained].abs(), 0.01, rtol=0.05)


def test_a_rank_without_room_for_what_the_server_sends_ends_the_job(
    federate, monkeypatch
):
    """The others know nothing of it, so all ranks cannot end together."""

    def full(*arguments):
        raise RunFailure("/tmp: No space left on device")

    monkeypatch.setattr(mixing, "combine", full)
    with pytest.raises(
        RankFailure, match="round 2, what the server sends: /tmp: No space left"
    ):
        federate({"name": "cwfedavg", "layers": "all"}, tiny.FEW * 4)
