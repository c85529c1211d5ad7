"""Files of devices: their rows and the clients' names."""

import json

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
