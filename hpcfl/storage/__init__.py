"""The folder of a run: checkpoints, metrics, lock and status."""
