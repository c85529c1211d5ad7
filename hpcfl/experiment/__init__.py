"""The experiment: its file, keys and limits, sweeps, and the plugins that it names."""
