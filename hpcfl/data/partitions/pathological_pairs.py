"""DiversiFed's pathological partition: each client draws a few classes; clients may
share samples.

Wu et al., "The Diversity Bonus" (protocols.md D5). The classes of a client have equal
numbers of samples. The paper gives two classes to a client for every data set. A class
may remain unused.
"""

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions._fixed import SharedScheme
from hpcfl.errors import UserError


class PathologicalPairs(SharedScheme):
    scheme: str = "pathological-pairs"
    classes_per_client: PositiveInt = Field(
        2, description="classes that a client holds"
    )

    def shares(self, classes: int, generator: np.random.Generator) -> np.ndarray:
        if self.classes_per_client > classes:
            raise UserError(
                f"partition.classes_per_client = {self.classes_per_client}: the data has "
                f"{classes} classes"
            )
        shares = np.zeros(classes)
        shares[generator.choice(classes, self.classes_per_client, replace=False)] = (
            1 / self.classes_per_client
        )
        return shares


plugin = PathologicalPairs
