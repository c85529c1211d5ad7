"""A lack of memory, threads or disk space is distinguished from other errors."""

import errno

import pytest
import torch

from hpcfl.errors import (
    MOST,
    RankFailure,
    UserError,
    explain,
    is_shortage,
    lack_of_memory,
    suggest,
)

SHORTAGES = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"),
    RuntimeError("can't start new thread"),
    RuntimeError("could not create a primitive"),
    ImportError("libtorch.so: failed to map: Cannot allocate memory"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ESTALE, "Stale file handle"),
]
OTHERS = [
    FileNotFoundError(errno.ENOENT, "out of memory"),
    PermissionError(errno.EACCES, "Permission denied"),
    ValueError("out of memory"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ImportError("No module named 'own'"),
    None,
]


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_shortage_is_explained_in_one_line(error):
    assert is_shortage(error)
    failure = RankFailure("round 2, client 3")
    failure.__cause__ = error
    assert len(explain(failure).splitlines()) == 1


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_are_no_shortage(error):
    assert not is_shortage(error) and lack_of_memory(error) is None


def test_only_a_cause_counts_and_not_the_context_of_a_damaged_file():
    try:
        try:
            raise MemoryError
        except MemoryError:
            raise UserError("own.npz: damaged") from None
    except UserError as error:
        assert lack_of_memory(error) is None


@pytest.mark.parametrize(
    ("word", "allowed", "text"),
    [
        ("AdamW", ["sgd", "adamw"], "; did you mean 'adamw'? allowed: sgd, adamw"),
        (
            "fedvag",
            ["local", "FedAvg"],
            "; did you mean 'FedAvg'? allowed: local, FedAvg",
        ),
        ("zzz", ["fedavg", "local"], "; allowed: fedavg, local"),
        ("x", [], "; allowed: none"),
    ],
)
def test_the_nearest_word_is_suggested(word, allowed, text):
    assert suggest(word, allowed) == text


def test_only_the_nearest_of_many_words_are_listed():
    many = [f"key{number}" for number in range(MOST + 1)]
    hint = suggest("keyy7", many)
    assert hint.startswith("; did you mean 'key7'? nearest: key7, ")
    assert hint.count("key") == 6
