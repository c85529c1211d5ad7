"""A file of a user's own with a hook of version 0.1.0 gets one line with the new name."""

import inspect
import re
from pathlib import Path

import pytest
import tiny

import hpcfl
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.methods._renamed import OLD_NAMES
from hpcfl.methods.fedavg import FedAvg, ServerModel
from hpcfl.simulation import preflight
from hpcfl.simulation.prepare import prepare


class Replies(FedAvg):
    """Its hook would never be called."""

    def reply(self, fleet, inbox, trained):
        return {"model": trained}


class Asks(FedAvg):
    """Calls a hook that is no more."""

    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, variables=self.known(fleet, rows))


class Joins(FedAvg):
    """Has a function of its own that happens to have such a name."""

    def join(self, words):
        return " ".join(words)


def prepared(kind):
    name = f"{__name__}:{kind}"
    return prepare(config.parse(tiny.table({"name": name})), OneProcess())


def test_an_old_hook_is_named_with_its_line_and_its_new_name():
    line = inspect.getsourcelines(Replies.reply)[1]
    with pytest.raises(UserError) as refusal:
        prepared("Replies")
    assert re.fullmatch(
        rf".*{Path(__file__).name}:{line}: the hook 'reply' of Replies is called "
        r"'upload' since version 0\.2\.0 \(CHANGELOG\.md\)",
        str(refusal.value),
    )


def test_a_call_of_an_old_hook_is_named_in_the_trial():
    words = "no attribute 'known'; since version 0.2.0 it is called 'loss_variables'"
    with pytest.raises(UserError, match=re.escape(words)):
        preflight.run(prepared("Asks"), OneProcess())


def test_a_function_that_is_no_hook_may_have_any_name():
    prepared("Joins")


def test_old_names_are_gone_and_the_change_log_has_them():
    text = (Path(hpcfl.__file__).parents[1] / "CHANGELOG.md").read_text("utf-8")
    for old, new in OLD_NAMES.items():
        assert not hasattr(ServerModel, old)
        assert f"`{old}(" in text and f"`{new}(" in text
    hooks = {new for new in OLD_NAMES.values() if hasattr(ServerModel, new)}
    assert {"prepare", "loss_variables", "store_state", "upload"} < hooks
