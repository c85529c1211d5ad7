"""Federations with ``runtime.precision = "bf16"``. ``test_adapted_runs.py`` tests that
their bits are reproducible.
"""

import pytest
import tiny
import torch
from playing import prepare_alone, run_alone
from refusals import expect_refusal

from hpcfl.commands import needs
from hpcfl.experiment import config, experiment_file
from hpcfl.rows import constants

LORA = {"kind": "lora", "targets": ["hidden*"], "rank": 2}


def table(precision="bf16", method="fedavg", adapter=LORA, **sections):
    runtime = {"precision": precision, **sections.pop("runtime", {})}
    return tiny.table(method, adapter=adapter, runtime=runtime, **sections)


def prepared(*given, **sections):
    return prepare_alone(table(*given, **sections))


def test_bfloat16_halves_frozen_weights_in_memory_and_forecast():
    """Its frozen layer has 6·5 weights and 6 biases."""
    half, exact = prepared(), prepared("exact")
    sizes = [
        constants.count_bytes(one.resources.kernel.module) for one in (half, exact)
    ]
    assert sizes == [2 * 30 + 4 * 6, 4 * 30 + 4 * 6]
    lanes = [needs.compute_rank_needs(one).lanes for one in (half, exact)]
    assert lanes[1] - lanes[0] == 60
    assert torch.equal(half.setup.initial(), exact.setup.initial())
    assert half.fixed_digest != exact.fixed_digest


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedproto", "fedrod", "fedem"])
def test_features_and_heads_that_methods_call_themselves_are_mixed(federate, method):
    played = federate(
        method, adapter=LORA, rounds=1, runtime={"precision": "bf16"}
    ).state
    plain = federate(method, adapter=LORA, rounds=1).state
    for name, value in plain.items():
        torch.testing.assert_close(played[name], value, rtol=0.1, atol=0.05)
    assert any(not torch.equal(played[name], value) for name, value in plain.items())


def test_a_run_cannot_continue_in_another_precision(played):
    began = played("fedavg", adapter=LORA, rounds=1, runtime={"precision": "bf16"})
    with expect_refusal(r"runtime\.precision"):
        run_alone(table("exact", rounds=2), began.folder)


def test_rounding_to_tf32_is_the_same_run_and_to_bfloat16_another_one():
    same = [config.parse(table(kind)).fingerprint() for kind in ("exact", "tf32")]
    assert same[0] == same[1] != config.parse(table()).fingerprint()
    assert "runtime" not in experiment_file.make_identity(
        config.parse(table("tf32")).resolved()
    )
