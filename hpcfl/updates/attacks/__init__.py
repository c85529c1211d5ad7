"""Attacks on the clients' updates and on training samples."""
