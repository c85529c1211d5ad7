"""Slurm: profiles, submission, the supervisor inside a job, and status of runs and
jobs.
"""
