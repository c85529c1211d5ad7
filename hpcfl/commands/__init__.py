"""Commands for experiments: run, check, tune, verify, export."""
