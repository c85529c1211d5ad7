import torch
from playing import prepare_tiny

from hpcfl.simulation import message_trial


def test_messages_have_their_shapes_without_training():
    """The server sends APFL's clients one model; a client returns it unchanged."""
    prepared = prepare_tiny("apfl")
    width, rounds = prepared.setup.layout.width, 0
    for messages in message_trial.record_two_rounds(prepared):
        sent, returned = messages.sent["model"], messages.returned["model"].tensor
        assert (sent.shape, returned.shape) == ((width,), (1, width))
        assert torch.equal(returned[0], sent)
        rounds += 1
    assert rounds == 2
