"""Tables, figures, progress and texts: what is shown of a run."""
