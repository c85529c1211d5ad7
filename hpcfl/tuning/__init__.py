"""Tuning every method alike: what is tried, with which budget, who goes on, what came
out.
"""
