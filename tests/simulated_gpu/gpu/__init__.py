"""A simulated CUDA device, for tests on machines without one.

Inside ``with GPU() as gpu:`` ``torch.cuda`` is available. A tensor on "cuda" reports
this device to autograd, ``vmap``, ``make_fx`` and the package under test, and stores its
values in a tensor of the CPU (``tensor.py``). Every operation passes ``device.py``. It
raises the errors of a GPU: tensors of two devices and, during a capture, waits of the
host, copies to or from it, and random draws. It also records expensive work: kernels,
waits of the host and copies (``ledger.py``), and bytes (``memory.py``). A captured graph
is a tape (``tape.py``).

The device simulates neither time nor the algorithms that cuBLAS and cuDNN select: its
kernels are the CPU's, and there is one stream. A C++ library must be loaded before torch
is imported (``guard.py``), so the tests on this device run in a process that pytest
starts with ``-p gpu.guard``.
"""
