"""Changes of the clients' updates: transforms, attacks and aggregation rules."""
