"""An asynchronous server in virtual time."""
