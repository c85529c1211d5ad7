"""A CUDA device that does not exist, for tests on machines without one.

``with GPU() as gpu:`` makes ``torch.cuda`` look available. A tensor on "cuda" says so
to autograd, ``vmap``, ``make_fx`` and the package under test, and keeps its values in a
tensor of the CPU (``tensor.py``). Every operation passes ``device.py``, which raises
where a GPU would (tensors of two devices; in a capture whatever makes the host wait,
copies to or from it, or draws random numbers) and writes down what would be slow on a
GPU: kernels, waits of the host, copies (``ledger.py``), bytes (``memory.py``). A
    captured graph is a tape (``tape.py``).

It knows nothing of time, nor of the algorithms that cuBLAS and cuDNN choose: its
kernels are the CPU's, and there is one stream. A library of C++ has to be loaded before
torch is imported (``guard.py``): the tests on this device run in a process that pytest
starts with ``-p gpu.guard``.
"""
