"""Selections of the clients that take part in a round, one file for each."""
