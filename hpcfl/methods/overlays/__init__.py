"""Overlays, which change the messages between a method's server and its clients."""
