"""Transforms of the clients' updates before they are sent."""
