"""Attacks on the clients' updates, one file for each."""
