"""FedProx-C."""
