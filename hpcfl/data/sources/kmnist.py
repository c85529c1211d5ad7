"""KMNIST (Clanuwat et al. 2018): 60,000 + 10,000 images 1×28×28 of cursive Japanese, 10
classes, in IDX files.

Read compressed, because the checksums that are public are of those files
(heterogeneity.md D2).
"""

from hpcfl.data.sources.mnist import IdxFiles

plugin = IdxFiles(
    "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    "KMNIST/raw",
    {
        "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
    },
    licence="CC BY-SA 4.0",
)
