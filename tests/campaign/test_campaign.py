"""The campaign in short: one fault of every kind, in one run."""

import campaign
import faults


def test_one_fault_of_every_kind(monkeypatch):
    kinds = iter(faults.ALL)
    found = None

    class InTurn(campaign.random.Random):
        def choice(self, options):
            return next(kinds) if options and options[0] in faults.ALL else super().choice(options)

    monkeypatch.setattr(campaign.random, "Random", InTurn)
    monkeypatch.setattr(campaign, "small_disk", campaign.small_disk)
    found = campaign.run(["fedavg"], len(faults.ALL) - 1, rounds=40, seed=1)
    assert found.wrong == [] and [event.wrong for event in found.events if event.wrong] == []
