"""The folder of a run: checkpoints, metrics and lock, and how far the run in it has
come.
"""
