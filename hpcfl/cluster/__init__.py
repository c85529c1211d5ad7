"""Slurm: what to ask for, sending jobs, the supervisor inside a job, and where runs and
jobs stand.
"""
