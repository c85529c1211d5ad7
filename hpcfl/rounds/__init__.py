"""The round: the loop over rounds, what each leaves behind, and how it is stopped."""
