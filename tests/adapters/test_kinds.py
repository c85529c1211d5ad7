"""Bottlenecks and prompts: their results, and whole runs with them."""

import numpy as np
import pytest
import torch
from playing import prepare_tiny
from refusals import expect_refusal
from safetensors.torch import load_file
from torch import nn

from hpcfl import models
from hpcfl.adapters import kinds
from hpcfl.commands.export import export
from hpcfl.experiment.sections import Adapter, Model
from hpcfl.models.attention import make_causal_mask
from hpcfl.models.mlp import MLP
from hpcfl.rows import constants
from hpcfl.rows.layout import lay_out_parameters
from hpcfl.storage.clients import digest_tensors

OF_IMAGES = {"width": 8, "depth": 2, "heads": 2, "hidden": 8}
SMALL = {**OF_IMAGES, "vocabulary": 9}
OF_HEADS = {**SMALL, "head_width": 4}
BUILT_IN = {
    "vit": ((1, 8, 8), {**OF_IMAGES, "head_width": 4}),
    "text-transformer": ((6,), SMALL),
    "char-transformer": ((6,), OF_HEADS),
    "bert": ((6,), {**SMALL, "positions": 9}),
    "gpt": ((6,), {**SMALL, "positions": 9}),
}
every_transformer = pytest.mark.parametrize("name", BUILT_IN)
HEAD = ["head.weight", "head.bias"]
BEHIND_BLOCKS = [f"block{i}.{leaf}" for i in (1, 2) for leaf in ("W_down", "W_up")]


def built(name):
    torch.manual_seed(3)
    shape, keys = BUILT_IN[name]
    return models.build(Model(name=name, options=keys), shape, 4).eval()


def samples_of(name):
    shape, _ = BUILT_IN[name]
    if name == "vit":
        return torch.randn(3, *shape)
    x = torch.randint(1, 9, (3, *shape))
    x[0, 4:] = 0  # padding, for models with a mask
    return x


def adapted(module, **keys):
    torch.manual_seed(5)
    return kinds.adapt(module, Adapter(**keys))


def trained(module):
    return lay_out_parameters(
        constants.hold(module, constants.copy_frozen(module))
    ).names


@every_transformer
def test_a_bottleneck_follows_every_block_and_begins_as_the_base_to_the_last_bit(name):
    module = adapted(built(name), kind="bottleneck", width=3)
    x = samples_of(name)
    assert torch.equal(module.features(x), built(name).features(x))
    assert torch.equal(module(x), built(name)(x))
    nn.init.normal_(module.block2.W_up)
    with torch.no_grad():  # so that ReLU keeps one of both for every token
        module.block2.W_down[1] = -module.block2.W_down[0]
    assert not torch.equal(module(x), built(name)(x))
    assert module.block1.W_down.shape == (3, 8)
    assert module.block1.W_down.abs().max() <= 8**-0.5
    assert module.block1.W_up.shape == (8, 3) and not module.block1.W_up.any()
    assert trained(module) == [*BEHIND_BLOCKS, *HEAD]


class Own(nn.Module):
    """A user's block, which may declare its width."""

    def __init__(self, width=None):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1)
        self.linear1, self.linear2 = nn.Linear(4, 7), nn.Linear(7, 4)
        if width:
            self.width = width

    def forward(self, x):
        x = x + self.attention(x, x, x)[0]
        return x + self.linear2(self.linear1(x).relu())


class OwnTransformer(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=0))


@pytest.mark.parametrize(
    ("block", "targets", "followed"),
    [
        (lambda: Own(width=4), ["blocks.*"], ["blocks.0", "blocks.1"]),
        (lambda: Own(width=4), ["blocks"], ["blocks.0", "blocks.1"]),
        (Own, ["blocks.*.linear2"], ["blocks.0.linear2", "blocks.1.linear2"]),
        (
            lambda: nn.TransformerEncoderLayer(4, 1, 7),
            [],
            ["blocks.0", "blocks.1"],
        ),
    ],
)
def test_a_bottleneck_follows_each_target_of_a_users_module(block, targets, followed):
    torch.manual_seed(3)
    module, x = OwnTransformer(block(), block()).eval(), torch.randn(5, 2, 4)
    before = module(x)
    adapted(module, kind="bottleneck", targets=targets, width=2)
    assert torch.equal(module(x), before)
    names = [f"{name}.{leaf}" for name in followed for leaf in ("W_down", "W_up")]
    assert set(trained(module)) == {*names, *HEAD}
    for name in followed:
        nn.init.ones_(module.get_submodule(name).W_up)
        after = module(x)
        assert not torch.equal(after, before)
        before = after


class Averaging(nn.Module):
    """A user's model of a sequence [1, tokens, 1]; every token receives the mean of the
    tokens that a mask shows.
    """

    def __init__(self, mask=None):
        super().__init__()
        self.width, self.mask = 1, mask
        self.head = nn.Linear(1, 2)

    def through_blocks(self, x, mask=None):
        scores = torch.zeros(x.shape[1], x.shape[1])
        return (scores if mask is None else scores + mask).softmax(dim=-1) @ x

    def forward(self, x):
        return self.through_blocks(x, self.mask)


HIDDEN = -torch.inf


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        # of 10, 20, 3 and 6 all
        (None, [39 / 4, 39 / 4]),
        # the second token is padding: the mean of 10, 20 and 3
        (torch.tensor([[0, HIDDEN]]), [11.0, 11.0]),
        # causal: the mean of 10, 20 and 3, and of all
        (make_causal_mask(2, torch.device("cpu")), [11.0, 39 / 4]),
    ],
)
def test_a_prompt_by_hand(mask, expected):
    """A prompt of 10 and 20 precedes the tokens 3 and 6, which receive means of the
    visible tokens; the prompt's positions give no output.
    """
    module = adapted(Averaging(mask), kind="prompt", tokens=2)
    with torch.no_grad():
        module.prompt.copy_(torch.tensor([[10.0], [20.0]]))
    given = module(torch.tensor([[[3.0], [6.0]]]))
    assert given.shape == (1, 2, 1)
    torch.testing.assert_close(given[0, :, 0], torch.tensor(expected))
    assert trained(module) == ["prompt", *HEAD]


@every_transformer
def test_every_built_in_transformer_reads_a_prompt(name):
    module, x = adapted(built(name), kind="prompt", tokens=3), samples_of(name)
    assert module.prompt.shape == (3, 8) and module.prompt.abs().max() <= 2
    assert trained(module) == ["prompt", *HEAD]
    before = module(x)
    nn.init.ones_(module.prompt)
    after = module(x)
    assert (after - before).abs().amax(dim=1).min() > 1e-4
    # a sample's logits do not depend on other samples
    assert torch.equal(module(x[:1]).argmax(), after[:1].argmax())
    torch.testing.assert_close(module(x[:1]), after[:1])


@pytest.mark.parametrize(
    ("module", "keys", "words"),
    [
        (
            MLP((5,), 4),
            {"kind": "prompt"},
            r"adapter\.kind = 'prompt': .* through_blocks\(x, mask\)",
        ),
        (
            MLP((5,), 4),
            {"kind": "bottleneck"},
            r"adapter\.targets: .*: hidden1$",
        ),
        (
            OwnTransformer(Own()),
            {"kind": "bottleneck", "targets": ["blocks.*"]},
            "'blocks.0' .Own. .* width",
        ),
        (
            OwnTransformer(Own()),
            {"kind": "bottleneck", "targets": ["*.out_proj"]},
            "'blocks.0.attention.out_proj' .NonDynamicallyQuantizableLinear. .* width",
        ),
        (
            OwnTransformer(nn.TransformerEncoderLayer(4, 1, 7)),
            {"kind": "bottleneck", "targets": ["*.linear2"]},
            r"'\*\.linear2' .*blocks\.0\.self_attn\.out_proj",
        ),
    ],
)
def test_modules_unsupported_by_these_adapters_are_refused(module, keys, words):
    with expect_refusal(words):
        adapted(module, **keys)


# ------------------------------------------------------------------------------- runs

COUNTS = [[4, 2, 0], [0, 5, 1], [1, 0, 0]]
BOTTLENECK = {"kind": "bottleneck", "width": 3}
PROMPT = {"kind": "prompt", "tokens": 2}
P = {"bottleneck": 2 * 3 * 8 + 3 * 8 + 3, "prompt": 2 * 8 + 3 * 8 + 3}


every_kind = pytest.mark.parametrize(
    "adapter", [BOTTLENECK, PROMPT], ids=lambda adapter: adapter["kind"]
)


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    """Return the sections of a configuration: the small character model with dropout,
    on random texts.
    """
    path = tmp_path_factory.mktemp("data") / "texts.npz"
    x = np.random.default_rng(0).integers(0, 9, (180, 6))
    np.savez(path, x=x, y=np.arange(3).repeat(60))
    keys = {**OF_HEADS, "depth": 1, "dropout": 0.1}
    return {
        "rounds": 2,
        "data": {"dataset": "npz", "file": str(path)},
        "model": {"name": "char-transformer", **keys},
        "training": {"lr": 0.3},
    }


@pytest.fixture
def fleet_of(sections):
    """Return ``fleet_of(adapter, lanes)``, which makes three untrained clients on one
    rank.
    """

    def make(adapter, lanes="auto"):
        prepared = prepare_tiny(
            "fedavg", COUNTS, **sections, adapter=adapter, runtime={"lanes": lanes}
        )
        return prepared.make_fleet(np.arange(len(COUNTS)), 1, is_scored=True)

    return make


@every_kind
def test_adapted_clients_train_identically_alone_and_in_lanes(fleet_of, adapter):
    fleet = fleet_of(adapter)
    assert fleet.setup.layout.width == P[adapter["kind"]]
    assert fleet.resources.kernel.widest > 1
    base = constants.collect(fleet.resources.kernel.module)
    before = digest_tensors(base)
    rows = fleet.setup.initial().repeat(len(COUNTS), 1)
    together = fleet.train(rows)
    below = fleet.setup.layout.columns("body")
    assert (together - rows)[:, below].abs().amax(dim=1).min() > 1e-6
    for client in range(len(COUNTS)):
        only = torch.arange(len(COUNTS)) == client
        alone = fleet_of(adapter).train(rows, only=only)
        assert torch.equal(alone[client], together[client])
    serial = fleet_of(adapter, 1).train(rows)
    torch.testing.assert_close(serial, together, rtol=0, atol=1e-6)
    assert digest_tensors(base) == before


@pytest.mark.slow
@every_kind
def test_only_adapters_are_sent_and_exports_are_complete(
    played, sections, tmp_path, adapter
):
    # a model with a class token, whose exported program accepts any number of samples
    of_texts = {**sections, "model": {"name": "text-transformer", **SMALL, "depth": 1}}
    run = played("fedavg", COUNTS, **of_texts, adapter=adapter)
    for name in ("floats_down", "clients/floats_up"):
        assert np.nanmax(run.results.values[name]) == P[adapter["kind"]]
    out, given = tmp_path / "out", (None, "last", ["tiny:Counts"])
    kind = adapter["kind"]
    export(run.folder, [0], False, *given, out)
    tensors = load_file(out / "client-0.safetensors")
    added = {"bottleneck": "block1.W_up", "prompt": "prompt"}[kind]
    assert tensors[added].any() and "block1.linear1.weight" in tensors
    model = run.models.model(0)
    program = torch.export.load(out / "client.pt2").module()
    program.load_state_dict(tensors)
    x, _ = run.models.samples([0])
    torch.testing.assert_close(program(x), model.module(x))
