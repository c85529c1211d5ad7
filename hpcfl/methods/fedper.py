"""FedPer: the body of the model is shared, each client keeps its own head; both are
trained together.

Arivazhagan et al., "Federated learning with personalization layers", 2019. b ← Σ_S p_i
b_i; the head h_i, the last linear layer, never leaves its client. The result is
``pre``, before local training, as in FedALA. FedNH reads ``post``, and for the server's
model ``global``, the shared body under the initial head.

``shared`` selects other parameters to share; the rest is private. Above a frozen base
(``[adapter]``) ``shared = ["*.A"]`` is FedSA-LoRA (Guo et al., ICLR 2025), which
averages the matrices A and keeps B and the classifier (adapters.md §4).
"""

from pydantic import Field
from torch import Tensor

from hpcfl.methods._shared_part import PrivatePart
from hpcfl.methods.base import Layout
from hpcfl.rows.layout import match_names


class FedPer(PrivatePart):
    """State and traffic of FedPer.

    Server: ``model`` [P], the shared parameters and the initial private ones. Client:
    ``head`` [P_h], its own. Down P_b, up P_b.
    """

    reference = "Arivazhagan et al., arXiv 1912.00818"
    shared: list[str] | None = Field(
        None,
        min_length=1,
        description="patterns of the shared parameters, such as '*.A'; all other parameters are "
        "private. Default: all but the head",
    )

    def list_shared_names(self, layout: Layout) -> list[str]:
        """Return the names of the shared parameters, in the order of a row."""
        if self.shared is None:
            return layout.list_members(("body",))
        return match_names(self.shared, layout.names, "method.shared")

    def list_private_names(self, layout: Layout) -> list[str]:
        """Return the names of the private parameters."""
        shared = set(self.list_shared_names(layout))
        return [name for name in layout.names if name not in shared]

    def cut_shared_part(self, layout: Layout, rows: Tensor) -> Tensor:
        if self.shared is None:
            return super().cut_shared_part(layout, rows)
        columns = layout.columns_of(self.list_shared_names(layout))
        return rows.index_select(-1, columns.to(rows.device))

    def cut_private_part(self, layout: Layout, rows: Tensor) -> Tensor:
        if self.shared is None:
            return super().cut_private_part(layout, rows)
        columns = layout.columns_of(self.list_private_names(layout))
        return rows.index_select(-1, columns.to(rows.device))

    def join_parts(self, layout: Layout, shared: Tensor, private: Tensor) -> Tensor:
        concatenated = super().join_parts(layout, shared, private)
        if self.shared is None:
            return concatenated
        names = [*self.list_shared_names(layout), *self.list_private_names(layout)]
        places = layout.columns_of(names).argsort()
        return concatenated.index_select(-1, places.to(shared.device))


plugin = FedPer
