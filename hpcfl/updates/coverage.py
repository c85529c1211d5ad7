"""The uploads that changes of updates cover: means of values that all clients received
alike, or changes of such values.
"""

import torch
from torch import Tensor

from hpcfl.communication.message import Field, Inbox, Mean, Message, wrap_entries
from hpcfl.errors import UserError
from hpcfl.methods.base import Method

# the sections that change updates
SECTIONS = "[privacy], [transform], [compression], [attack] and [aggregation]"


def check_method(method: Method) -> None:
    """Raise UserError for a method whose later rounds upload more than means."""
    if method.uploads_rows:
        raise UserError(
            f"method.name = '{method.name}': {method.uploads_rows}; {SECTIONS} need "
            "means of what the clients received under the same name; take another method"
        )


def check_upload(inbox: Inbox, message: Message) -> dict[str, Mean]:
    """Return the entries of an upload, which must be means of received values with the
    same weights.

    Raises UserError that names another entry.
    """
    means: dict[str, Mean] = {}
    for name, entry in wrap_entries(message).items():
        if problem := find_problem(name, entry, inbox):
            raise UserError(
                f"the clients' upload '{name}' {problem}; {SECTIONS} need means of what "
                "the clients received under the same name; take another method"
            )
        assert isinstance(entry, Mean)
        means[name] = entry
        first = next(iter(means))
        if not torch.equal(entry.weights, means[first].weights):
            raise UserError(
                f"the clients' upload '{name}' has other weights than '{first}'; set "
                "method.weights = 'uniform' or take another method"
            )
    return means


def find_problem(name: str, entry: Field | Mean, inbox: Inbox) -> str:
    """Return why an entry of an upload has no update, "" if it has one."""
    if not isinstance(entry, Mean):
        return "is each client's own"
    start = entry.change_of or name
    if start not in inbox:
        return "was not received"
    received = inbox[start]
    if not isinstance(received, Tensor) or received.dim() != 1:
        return "was received with a value for each client"
    if entry.tensor.dim() != 2 or entry.weights.dim() != 1:
        return "has several means"
    if entry.tensor.shape[1:] != received.shape:
        return "has another shape than what was received"
    return ""
