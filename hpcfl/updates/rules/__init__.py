"""Rules by which the server combines the clients' updates, one file for each."""
