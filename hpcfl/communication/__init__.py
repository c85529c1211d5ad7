"""Messages, their exchange between ranks, and the placement of clients on ranks."""
