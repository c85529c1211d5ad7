"""FedNH's spiral with long-tailed classes: ⌊3000/2^k⌋ training points of class k."""

from hpcfl.data.sources.spiral import CLASSES, Spiral

plugin = Spiral(tuple(3000 // 2**k for k in range(CLASSES)))
