"""The folder of a run: checkpoints, metrics, clients' private state, lock and status."""
