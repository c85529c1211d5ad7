"""Trained parameters of a model, and results of low-rank corrections."""

import copy

import pytest
import torch
from refusals import expect_refusal
from torch import nn
from torch.nn.functional import cross_entropy

from hpcfl.adapters import kinds, lora
from hpcfl.clients.execution import BatchedKernel, Work
from hpcfl.clients.losses import CROSS_ENTROPY, Batch, expand_constants
from hpcfl.experiment.sections import Adapter
from hpcfl.models.mlp import MLP
from hpcfl.models.vit import ViT
from hpcfl.rows import constants
from hpcfl.rows.layout import lay_out_parameters

LORA = {"kind": "lora", "targets": ["hidden*"], "rank": 2}


def base():
    return MLP((5,), 4, hidden=(6, 7))


def mlp(**keys):
    torch.manual_seed(3)
    return kinds.adapt(base(), Adapter(**keys))


def freeze(module):
    return constants.hold(module, constants.copy_frozen(module))


def list_trained(module):
    return lay_out_parameters(freeze(module)).names


def moved(module):
    """Return the module with non-zero corrections."""
    for layer in lora.find_layers(module).values():
        nn.init.normal_(layer.A)
        nn.init.normal_(layer.B)
    return module


HEAD = ["head.weight", "head.bias"]
BIASES = ["hidden1.bias", "hidden2.bias"]
LOW = ["hidden1.A", "hidden1.B", "hidden2.A", "hidden2.B"]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (LORA, [*LOW, *HEAD]),
        ({}, [name for name, _ in base().named_parameters()]),
        ({**LORA, "targets": ["hidden2"]}, [*LOW[2:], *HEAD]),
        ({**LORA, "train_a": False}, ["hidden1.B", "hidden2.B", *HEAD]),
        ({**LORA, "train": ["hidden1.bias"]}, ["hidden1.bias", *LOW, *HEAD]),
        ({"kind": "head"}, HEAD),
        (
            {"kind": "head", "train": ["hidden2"]},
            ["hidden2.weight", *BIASES[1:], *HEAD],
        ),
        ({"kind": "bias"}, [*BIASES, *HEAD]),
    ],
)
def test_only_the_adapter_and_the_head_are_trained(keys, names):
    assert list_trained(mlp(**keys)) == names


def test_queries_and_values_are_corrected_by_default_and_norms_are_trained_if_asked():
    module = ViT((1, 8, 8), 4, width=8, depth=1, heads=2, head_width=4, hidden=8)
    names = list_trained(kinds.adapt(copy.deepcopy(module), Adapter(kind="lora")))
    assert names == ["block1.attention.qkv.A", "block1.attention.qkv.B", *HEAD]
    biased = list_trained(kinds.adapt(module, Adapter(kind="bias", norms=True)))
    assert {"block1.norm1.weight", "norm.weight", "norm.bias"} <= set(biased)
    assert "block1.linear1.weight" not in biased


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({**LORA, "targets": ["head"]}, "adapter.targets: 'head' "),
        ({**LORA, "targets": []}, r"adapter\.targets: .*: hidden1, hidden2$"),
        ({**LORA, "train": ["hidden9"]}, r"adapter\.train: 'hidden9' "),
        ({**LORA, "rank": 8}, "adapter.rank = 8: .*'hidden1' .* 5 .* 6$"),
    ],
)
def test_keys_that_do_not_fit_the_model_are_refused(keys, words):
    with expect_refusal(words):
        mlp(**keys)


def test_layers_read_inside_torchs_block_are_refused_as_targets():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.TransformerEncoderLayer(4, 1, 4)
            self.head = nn.Linear(4, 2)

    with expect_refusal(r"adapter\.targets: '\*linear1' "):
        kinds.adapt(Net(), Adapter(kind="lora", targets=["*linear1"]))


def test_a_corrected_model_begins_as_its_base_to_the_last_bit():
    x = torch.randn(9, 5)
    assert torch.equal(mlp(**LORA).features(x), mlp().features(x))
    merged = lora.merge(mlp(**LORA))
    assert type(merged.hidden1) is nn.Linear
    for name, value in mlp().state_dict().items():
        assert torch.equal(merged.state_dict()[name], value)


def test_a_correction_by_hand_and_merged():
    """r = 1, α = 3: with A = (1, 2), B = (4) the result is W₀x + b + 3·4·(x₁ + 2x₂);
    for α/√r with r = 4 the factor is 3/2.
    """
    layer = nn.Linear(2, 1)
    module = nn.ModuleDict({"a": layer})
    lora.correct(layer, "a", Adapter(kind="lora", rank=1, alpha=3.0))
    layer.weight.data = torch.tensor([[10.0, 20.0]])
    layer.bias.data.fill_(5)
    layer.A.data = torch.tensor([[1.0, 2.0]])
    layer.B.data.fill_(4)
    x = torch.tensor([[1.0, 1.0]])
    assert layer(x).item() == 10 + 20 + 5 + 3 * 4 * 3
    lora.merge(module)
    assert layer(x).item() == 71 and list(layer.state_dict()) == ["weight", "bias"]
    other = nn.Linear(4, 4)
    scaled = Adapter(kind="lora", rank=4, alpha=3.0, scale="alpha/sqrt(r)")
    lora.correct(other, "b", scaled)
    assert other.factor == 1.5


def test_matrix_a_has_the_distribution_of_peft():
    layer = nn.Linear(400, 3)
    lora.correct(layer, "a", Adapter(kind="lora", rank=100))
    assert layer.A.abs().max() <= 1 / 20  # 1/√400
    assert layer.A.detach().std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    assert not layer.B.any()


def test_embeddings_are_corrected_except_for_padding():
    layer = nn.Embedding(6, 3, padding_idx=0)
    module, tokens = nn.ModuleDict({"a": layer}), torch.tensor([[0, 1, 5]])
    before = layer(tokens)
    lora.correct(layer, "a", Adapter(kind="lora", rank=2, alpha=2.0))
    assert torch.equal(layer(tokens), before)
    nn.init.normal_(layer.A)
    expected = before + layer.A.T[tokens] @ layer.B.T
    expected[:, 0] = 0
    torch.testing.assert_close(layer(tokens), expected)
    lora.merge(module)
    torch.testing.assert_close(layer(tokens), expected)


class Words(nn.Module):
    def __init__(self, padding=None, words=9):
        super().__init__()
        self.words = nn.Embedding(words, 5, padding)
        self.hidden = nn.Linear(5, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens):
        return self.head(self.hidden(self.words(tokens).mean(dim=1)).relu())


def test_a_frozen_matrix_is_the_drawn_one():
    """In a linear layer B is zero, in an embedding A."""
    keys = Adapter(kind="lora", targets=["words", "hidden"], rank=2, train_a=False)
    module = kinds.adapt(Words(), keys)
    assert list_trained(module) == ["words.A", "hidden.B", *HEAD]
    tokens, y = torch.randint(9, (8, 3)), torch.arange(8) % 4
    before = copy.deepcopy(module.state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0)
    cross_entropy(module(tokens), y).backward()
    optimiser.step()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in list_trained(module))


def test_a_weight_that_another_layer_has_too_is_merged_for_one_alone():
    tied = Words(words=4)
    tied.head = nn.Linear(5, 4)
    tied.hidden = nn.Linear(5, 5)
    tied.head.weight = tied.words.weight
    module = kinds.adapt(tied, Adapter(kind="lora", targets=["words"], rank=2))
    moved(module)
    tokens = torch.randint(4, (8, 3))
    before, base = module(tokens), module.head.weight.clone()
    torch.testing.assert_close(lora.merge(module)(tokens), before)
    assert torch.equal(module.head.weight, base)
    assert not module.words.weight.requires_grad


def test_an_adapter_trains_parameters_that_the_module_freezes():
    keys = Adapter(kind="head", train=["hidden2.bias"])
    adapted = kinds.adapt(base().requires_grad_(False), keys)
    assert list_trained(adapted) == ["hidden2.bias", *HEAD]
    frozen = base().requires_grad_(False)
    frozen.head.requires_grad_(True)
    assert list_trained(kinds.adapt(frozen, Adapter())) == HEAD


def test_the_row_of_padding_is_not_trained():
    """This includes a correction, if ``adapter.train`` names the embedding itself."""
    keys = Adapter(kind="lora", targets=["words"], train=["words"], rank=2)
    module = moved(freeze(kinds.adapt(Words(padding=0), keys)))
    names = lay_out_parameters(module).names
    assert "words.weight" in names
    lanes = {
        name: value.detach() + torch.randn(3, *value.shape)
        for name, value in module.named_parameters()
    }
    x, y = torch.randint(2, (3, 16, 7)), torch.randint(4, (3, 16))
    session = BatchedKernel(module, 3).begin(Work(lanes, names, CROSS_ENTROPY))
    found, _ = session.compute_gradients(slice(0, 3), Batch(x, y), {})
    of_words = found["words.weight"]
    assert not of_words[:, 0].any() and of_words[:, 1].any(dim=1).all()


def test_a_table_of_the_base_is_not_copied_for_every_lane():
    module = freeze(kinds.adapt(Words(), Adapter(kind="head")))
    assert list(expand_constants(module, 3)) == ["hidden.weight", "hidden.bias"]
    tied = Words()
    tied.hidden.weight = tied.words.weight = nn.Parameter(torch.randn(6, 5))
    tied = freeze(kinds.adapt(tied, Adapter(kind="head")))
    assert list(expand_constants(tied, 3)) == ["words.weight", "hidden.bias"]
