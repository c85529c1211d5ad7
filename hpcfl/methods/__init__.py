"""Federated learning methods, one file each, found by the name in ``method.name``."""
