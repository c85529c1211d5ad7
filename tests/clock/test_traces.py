"""Files of devices: their rows and the clients' names."""

import json

from refusals import expect_refusal

from hpcfl.clock import traces


def test_names_of_clients_in_another_order_are_noted(tmp_path):
    file = tmp_path / "devices.json"
    row = {"training": 100.0, "communication": 1e6}
    file.write_text(json.dumps({"bob": row, "alice": row}))
    (note,) = traces.note_order(str(file), ["alice", "bob"])
    assert "'bob'" in note and "'alice'" in note
    assert not traces.note_order(str(file), ["bob", "alice"])
    assert not traces.note_order(str(file), ["0", "1"])
    assert not traces.note_order(str(file), [])


def test_less_than_a_bit_per_second_is_refused(tmp_path):
    file = tmp_path / "devices.json"
    file.write_text(json.dumps([{"training": 100.0, "communication": 1e-4}]))
    with expect_refusal("communication.*0.001"):
        traces.read_capacities(str(file))
