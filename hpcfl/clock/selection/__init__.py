"""Selections of clients, one module each."""
