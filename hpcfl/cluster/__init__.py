"""Slurm: profiles, submission, the supervisor inside a job, and the status of runs and
jobs.
"""
