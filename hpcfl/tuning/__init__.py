"""Equal tuning of all methods: search space, budget, selection of candidates, outcome."""
