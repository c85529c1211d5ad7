"""Rules that map the names of a file's tensors to parameters, by hand."""

import pytest
import torch
from refusals import expect_refusal

from hpcfl.adapters.names import find_all_pieces


def made(name, tensors, rules, shape=()):
    """Return the parameter of a name that the file's tensors give."""
    pieces = find_all_pieces(tensors, rules)[name]
    return torch.cat([piece.cut(tensors[piece.tensor], shape) for piece in pieces])


def test_the_first_rule_that_matches_as_a_whole_counts_and_the_rest_keeps_its_name():
    rules = {
        "layer.*.*": r"block\1+1.\2",
        "layer.**": "never",
        "lay": "never",
        "old": [],
    }
    tensors = ["layer.0.w", "layer.09.b", "layers", "old", "head.weight"]
    found = find_all_pieces(tensors, rules)
    assert list(found) == ["block1.w", "block10.b", "layers", "head.weight"]
    assert [piece.tensor for piece in found["block10.b"]] == ["layer.09.b"]
    assert find_all_pieces(["a"], {})["a"][0].tensor == "a"


def test_two_stars_match_any_number_of_name_parts():
    rules = {"**.h.*.w": r"block\2.\1", "skip.**": [], "a.**.z": r"\1"}
    tensors = ["h.0.w", "x.y.h.1.w", "h.w", "skip", "skip.a.b", "a.z", "a.b.c.z"]
    assert list(find_all_pieces(tensors, rules)) == [
        "block0.",
        "block1.x.y",
        "h.w",
        "",
        "b.c",
    ]


def test_queries_keys_and_values_are_joined_in_the_rules_order_and_split():
    apart = {
        "v": torch.full((2, 3), 3.0),
        "q": torch.ones(2, 3),
        "k": torch.zeros(2, 3),
    }
    joined = made("qkv", apart, {"q": "qkv", "k": "qkv", "v": "qkv"})
    assert joined[:, 0].tolist() == [1, 1, 0, 0, 3, 3]
    split = {"qkv": ["q", "k", "v"]}
    for name, tensor in apart.items():
        assert torch.equal(made(name, {"qkv": joined}, split), tensor)
    turned = {"qkv": ["transposed q", "transposed k", "transposed v"]}
    assert torch.equal(made("k", {"qkv": joined.T}, turned), apart["k"])


def test_rules_transpose_or_reshape_a_tensor():
    matrix = torch.arange(6.0).view(2, 3)
    assert torch.equal(made("a", {"w": matrix}, {"w": "transposed a"}), matrix.T)
    reshaped = made("a", {"w": matrix}, {"w": "reshaped a"}, (3, 2))
    assert torch.equal(reshaped, matrix.reshape(3, 2))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("brt", "adapter.names = 'brt'; .*'bert'"),
        ({"w*": "a"}, r"adapter\.names: 'w\*': "),
        ({"**.**": "a"}, r"adapter\.names: '\*\*\.\*\*': "),
        ({"w": r"b\1"}, r"'b\\1' .* 0 "),
        ({"*": r"b\0"}, r"'b\\0' .* 1 "),
        ({"*": r"b\1+1"}, r"'b\\1\+1' .*'w'"),
        ({"w": "turned b"}, "'turned b' .*'transposed' or 'reshaped'"),
        ({"*": "a"}, "'w' and 'x' .*'a'"),
    ],
)
def test_an_invalid_rule_is_refused(rules, words):
    with expect_refusal(words):
        find_all_pieces(["w", "x"], rules)
