"""LEAF's users as the clients of a data set."""

import numpy as np

from hpcfl.data.datasets import Owners
from hpcfl.data.sources._leaf_files import User
from hpcfl.errors import UserError
from hpcfl.files import wording


def number_users(train: list[User], test: list[User]) -> Owners:
    """Return the clients, those of train/ first. Raises UserError where a user's name is
    spelled in another way in test/.
    """
    trained = {user.name for user in train}
    tested = {user.name for user in test}
    _refuse_other_spelling(train, sorted(tested - trained))
    numbers: dict[str, int] = {}  # of clients, by name
    for user in (*train, *test):
        numbers.setdefault(user.name, len(numbers))
    clients = [numbers[user.name] for user in (*train, *test)]
    sizes = [len(user.y) for user in (*train, *test)]
    unseen = len(tested) if trained.isdisjoint(tested) else 0
    return Owners(tuple(numbers), np.repeat(clients, sizes), unseen)


def _refuse_other_spelling(train: list[User], only_tested: list[str]) -> None:
    """Raise UserError for a user of test/ alone whose name differs from one in train/ in
    nothing but case or spaces.
    """
    spelled = {wording.fold(user.name): user for user in train}
    for name in only_tested:
        other = spelled.get(wording.fold(name))
        if other is not None:
            raise UserError(
                f"{other.path}: user '{other.name}' is spelled '{name}' in test/; names "
                "must be equal in both"
            )


def refuse_other_samples(users: list[User]) -> None:
    """Raise UserError for the first user with samples of another type or length."""
    first = users[0]
    for user in users:
        if (user.x.dtype, user.x.shape[1:]) != (first.x.dtype, first.x.shape[1:]):
            raise UserError(
                f"{user.path}: user '{user.name}' has samples {_form(user.x)}, user "
                f"'{first.name}' in {first.path} has {_form(first.x)}; all users' samples "
                "must be alike"
            )


def _form(x: np.ndarray) -> str:
    """Return the type and shape of samples, for a message."""
    return f"{x.dtype} {list(x.shape[1:])}"
