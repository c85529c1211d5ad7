"""Local optimisers compared with torch's."""

import pytest
import torch


@pytest.mark.parametrize(
    ("optimizer", "keys"),
    [
        *(
            (optimizer, keys)
            for optimizer in ("sgd", "adam", "adamw")
            for keys in (
                {},
                {"weight_decay": 0.02},
                {"clip": 0.3},
                {"clip": 0.3, "weight_decay": 0.02},
            )
        ),
        ("sgd", {"momentum": 0.9}),
    ],
)
def test_optimisers_are_torchs(make_fleet, rows_of, optimizer, keys):
    """Five full-batch steps in float64 for each client, compared with torch.optim for
    one client alone.
    """
    fleet = make_fleet(
        dtype=torch.float64, batch_size=100, optimizer=optimizer, lr=0.05, **keys
    )
    rows = rows_of(fleet)
    trained = fleet.train(rows, epochs=5)
    samples, module = fleet.resources.samples, fleet.setup.build().double()
    for client in range(5):
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(fleet.layout.split(rows[client])[name])
        common = {"lr": 0.05, "weight_decay": keys.get("weight_decay", 0.0)}
        if optimizer == "sgd":
            common["momentum"] = keys.get("momentum", 0.0)
        reference = {
            "sgd": torch.optim.SGD,
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
        }[optimizer](module.parameters(), **common)
        x, y = samples.take(samples.train[client])
        for _ in range(5):
            reference.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            if "clip" in keys:
                torch.nn.utils.clip_grad_norm_(module.parameters(), keys["clip"])
            reference.step()
        named = module.state_dict()
        for name, view in fleet.layout.split(trained[client]).items():
            torch.testing.assert_close(view, named[name], rtol=1e-7, atol=1e-9)
