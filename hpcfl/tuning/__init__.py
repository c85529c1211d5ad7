"""Tuning of all methods with equal budgets: ranges, budget, selection and outcome."""
