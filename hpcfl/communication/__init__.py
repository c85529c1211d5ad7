"""Messages, the exchange of rows between ranks, and the placement of clients on ranks."""
