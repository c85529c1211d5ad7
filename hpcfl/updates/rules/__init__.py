"""Aggregation rules, which combine the clients' updates on the server."""
