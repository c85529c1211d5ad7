"""Scores: metrics of a model on its client's test samples. ``base.py`` has the base
class.
"""
