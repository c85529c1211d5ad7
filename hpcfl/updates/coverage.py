"""Check that uploads consist of updates: means of values that all clients received
equally, or of changes of such values.
"""

import torch
from torch import Tensor

from hpcfl.communication.message import Field, Inbox, Mean, Message, wrap_entries
from hpcfl.errors import UserError
from hpcfl.methods.base import Method

# Sections that change updates, for error messages.
SECTIONS = "[privacy], [transform], [compression], [attack] and [aggregation]"


def check_method(method: Method) -> None:
    """Raise UserError for a method that uploads rows in later rounds."""
    if method.uploads_rows:
        raise UserError(
            f"method.name = '{method.name}': {method.uploads_rows}; {SECTIONS} need "
            "means of values that the clients received under the same name; take another "
            "method"
        )


def check_upload(inbox: Inbox, message: Message) -> dict[str, Mean]:
    """Return the entries of an upload after checking that they are means of received
    values with equal weights.

    Raises UserError with the name of the first other entry.
    """
    means: dict[str, Mean] = {}
    for name, entry in wrap_entries(message).items():
        if problem := find_problem(name, entry, inbox):
            raise UserError(
                f"the clients' upload '{name}' {problem}; {SECTIONS} need means of values "
                "that the clients received under the same name; take another method"
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
    """Return the reason why an entry of an upload is no update, "" if it is one. The
    reason is a predicate whose subject is the entry.
    """
    if not isinstance(entry, Mean):
        return "is a row for each client"
    start = entry.change_of or name
    if start not in inbox:
        return "was not received"
    received = inbox[start]
    if not isinstance(received, Tensor) or received.dim() != 1:
        return "was received with a value for each client"
    if entry.tensor.dim() != 2 or entry.weights.dim() != 1:
        return "has several means"
    if entry.tensor.shape[1:] != received.shape:
        return "has another shape than the received value"
    return ""
