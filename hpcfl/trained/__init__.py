"""The models of a run, read from its folder: as plain torch modules, and as files."""
