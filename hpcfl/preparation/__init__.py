"""What is prepared: everything that a rank needs before round 1."""
