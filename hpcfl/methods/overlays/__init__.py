"""Overlays: changes of all messages between a method's server and its clients."""
