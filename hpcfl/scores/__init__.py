"""Scores: what is measured of a model on its client's test samples. The contract is
``base.py``.
"""
