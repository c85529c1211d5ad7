"""Files of devices: their rows and the clients' names."""

import json

from refusals import expect_refusal

from hpcfl.clock import traces


def test_too_few_rows_and_another_order_of_clients_are_noted(tmp_path):
    file = tmp_path / "devices.json"
    row = {"training": 100.0, "communication": 1e6}
    file.write_text(json.dumps({"bob": row, "alice": row}))
    (note,) = traces.note_rows(str(file), 2, ["alice", "bob"])
    assert "'bob'" in note and "'alice'" in note
    assert not traces.note_rows(str(file), 2, ["bob", "alice", "newcomer"])
    assert not traces.note_rows(str(file), 2, ["0", "1"])
    assert not traces.note_rows(str(file), 1, [])
    (few,) = traces.note_rows(str(file), 3, [])
    assert "3 clients" in few and "2 rows" in few


def test_less_than_a_bit_per_second_is_refused(tmp_path):
    file = tmp_path / "devices.json"
    file.write_text(json.dumps([{"training": 100.0, "communication": 1e-4}]))
    with expect_refusal("communication.*0.001"):
        traces.read_capacities(str(file))
