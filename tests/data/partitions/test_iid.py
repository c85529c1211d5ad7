import numpy as np

from hpcfl.data.partitions.iid import plugin


def test_shares_are_equal_and_random():
    samples = (
        plugin(clients=4).assign(np.arange(10) % 2, 2, np.random.default_rng(0)).samples
    )
    assert [len(held) for held in samples] == [3, 3, 2, 2]
    dealt = np.concatenate(samples)
    assert sorted(dealt) == list(range(10)) != dealt.tolist()
