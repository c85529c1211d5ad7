"""Transforms of the clients' updates, one file for each."""
