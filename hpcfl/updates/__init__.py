"""Transforms, attacks and aggregation rules for the clients' updates."""
