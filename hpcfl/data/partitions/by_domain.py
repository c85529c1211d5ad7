"""Style domains: each domain is divided among its own clients, so no client holds
samples of two domains (heterogeneity.md H4).

The domains of a data set are its natural clients, which ``by-client`` turns into one
client each: sensors, hospitals or origins. Their names come from the array ``client``
of an npz file, the folders of npz-folders, PFLlib's clients, a table's column of
clients, CINIC-10's two origins or Camelyon17's hospitals. Clients are numbered in the
order of the domains and named after their domain.

The official training and test samples are merged, and each client's samples are split
at random. With one domain the partition equals that of the scheme ``inside``. To keep a
domain's own test samples separate, use ``by-client``, with one client per domain.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.datasets import Dataset, Owners
from hpcfl.data.partitions.base import Assignment, Draw, MergedScheme
from hpcfl.data.partitions.dirichlet import Dirichlet
from hpcfl.data.partitions.iid import Iid
from hpcfl.errors import UserError
from hpcfl.rows import randomness


class ByDomain(MergedScheme):
    by_number = True
    scheme: str = "by-domain"
    clients_per_domain: PositiveInt = Field(
        1,
        description="clients per domain; partition.clients is the total number",
    )
    inside: Literal["iid", "dirichlet"] = Field(
        "iid", description="scheme that divides a domain's samples"
    )
    beta: float = Field(0.1, gt=0, description="beta of inside = 'dirichlet'")

    readers = {"inside": {"dirichlet": ("beta",)}}

    def draw_from(self, dataset: Dataset) -> Draw:
        domains = self._find_domains(dataset)
        labels = self.get_assigned_labels(dataset)
        generator = randomness.generator(self.seed, "partition")
        samples = []
        names = []
        attempts = 1
        for position, domain in enumerate(domains.names):
            members = np.flatnonzero(domains.numbers[: len(labels)] == position)
            if len(members) < self.clients_per_domain:
                raise UserError(
                    f"partition.clients_per_domain = {self.clients_per_domain}: the domain "
                    f"'{domain}' of '{dataset.name}' has {len(members)} samples; use fewer "
                    "clients, or remove the domain from the data"
                )
            try:
                dealt = self.assign(labels[members], dataset.classes, generator)
            except UserError as error:
                raise UserError(f"{error} (in the domain '{domain}')") from None
            samples += [members[held] for held in dealt.samples]
            names += self._name_clients(domain)
            attempts = max(attempts, dealt.attempts)
        return replace(self.divide(Assignment(samples, attempts)), names=names)

    def assign(
        self, labels: np.ndarray, classes: int, generator: np.random.Generator
    ) -> Assignment:
        """Assign the samples of one domain to its clients; ``labels`` are the domain's."""
        clients = self.clients_per_domain
        inner: MergedScheme = Iid(clients=clients, train=self.train)
        if self.inside == "dirichlet":
            inner = Dirichlet(clients=clients, train=self.train, beta=self.beta)
        return inner.assign(labels, classes, generator)

    def _find_domains(self, dataset: Dataset) -> Owners:
        """Return the domains of a data set.

        Raises UserError if it names none, or if their number does not fit the number of
        clients.
        """
        domains = dataset.owners
        if domains is None:
            raise UserError(
                f"partition.scheme = 'by-domain': '{dataset.name}' does not name the domains of "
                "its samples; use data with domains (an array 'client' in an npz file, or "
                "npz-folders with a folder for each domain)"
            )
        asked = len(domains.names) * self.clients_per_domain
        if asked != self.clients:
            raise UserError(
                f"partition.clients = {self.clients - self.newcomers}: '{dataset.name}' has "
                f"{len(domains.names)} domains; with partition.clients_per_domain = "
                f"{self.clients_per_domain}, set partition.clients = {asked - self.newcomers}"
            )
        return domains

    def _name_clients(self, domain: str) -> list[str]:
        """Return the names of the clients of a domain."""
        if self.clients_per_domain == 1:
            return [domain]
        return [f"{domain} {place}" for place in range(self.clients_per_domain)]


plugin = ByDomain
