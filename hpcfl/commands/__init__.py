"""What a user asks to be done with an experiment: run it, check it, measure it."""
