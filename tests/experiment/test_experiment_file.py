from hpcfl.experiment import experiment_file


def test_overrides_keep_their_types():
    table = {}
    for override in (
        "a.b.c=1",
        "a.x=0.5",
        "word=fedavg",
        "list=[1, 2]",
        "yes=true",
        'text="1"',
    ):
        experiment_file.assign(table, *experiment_file.split(override))
    assert table == {
        "a": {"b": {"c": 1}, "x": 0.5},
        "word": "fedavg",
        "list": [1, 2],
        "yes": True,
        "text": "1",
    }
