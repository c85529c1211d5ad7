"""The table of the methods' names in other frameworks contains each method once."""

import re
from pathlib import Path

from hpcfl import data
from hpcfl.experiment import plugins

PAGE = Path(data.__file__).parent / "names.md"


def test_every_method_has_a_row_and_none_is_missing():
    _, methods = PAGE.read_text(encoding="utf-8").split("## Methods\n")
    methods, _ = methods.split("## Data sets\n")
    table, lacking = methods.split("hpcfl lacks these methods:\n")
    rows = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert [row[0] for row in rows] == list(plugins.list_names("hpcfl.methods"))
    theirs = set(re.findall("`(.+?)`", str([row[1:] for row in rows])))
    missing = set(re.findall("`(.+?)`", lacking))
    assert len(missing) == 9 + 17
    # FedMTL is mentioned in the row of another method
    assert missing & theirs == {"FedMTL"}
