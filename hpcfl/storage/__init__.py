"""What a run leaves on the disk: checkpoints, metrics, and the lock of its folder."""
