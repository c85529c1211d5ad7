"""Experiment files: keys and their limits, sweeps, and plugins by name."""
