"""What is measured of a model on its client's test samples, one file a score; the contract is ``base.py``."""
