"""hpcfl: personalised federated learning simulated on HPC clusters."""

__version__ = "0.1.0"
