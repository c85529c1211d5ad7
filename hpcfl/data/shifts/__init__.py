"""Distribution shifts between clients (heterogeneity.md H0), one file each, found by
its name; ``base.py`` is the contract.
"""
