"""The simulated device, which executes every operation of torch."""

import gc
import threading
import weakref
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu import operations, runtime
from gpu.ledger import Copy, Ledger, line
from gpu.memory import Memory
from gpu.operations import aten
from gpu.tape import Tape
from gpu.tensor import OnGPU, each, tensors_in, values_of

PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer, OnGPU)


class WrongDevice(RuntimeError):
    """An operation has tensors on two devices."""


class OutOfOrder(RuntimeError):
    """A kernel that reads rows in order received rows in another layout."""


class IllegalInCapture(RuntimeError):
    """A requested operation is not allowed during a capture."""


class GPU(TorchDispatchMode):
    """A device of ``capacity`` bytes, available inside its ``with`` block."""

    def __init__(self, capacity: float = 80e9):
        super().__init__()
        self.ledger, self.memory = Ledger(), Memory(capacity)
        self.replayed: Tape | None = None  # the last replayed tape
        self._captured: Tape | None = None  # the tape of the current capture
        self._pinned: set[int] = set()
        self._stack = ExitStack()

    def __enter__(self):
        self._stack.enter_context(runtime.cuda(self))
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self._stack.close()

    @contextmanager
    def absent(self):
        """Run the block as on a machine without the device, where operations are
        faster.
        """
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    @contextmanager
    def capture(self, tape: Tape, pool=None, stream=None, capture_error_mode="global"):
        """Replace ``torch.cuda.graph``. Operations that may end a capture on a GPU are
        always refused here.
        """
        self.wait("the begin of a capture")
        if stream is None or capture_error_mode == "global":
            raise IllegalInCapture(
                "a capture on the stream of all, or one that calls of other threads end"
            )
        if gc.isenabled():
            raise IllegalInCapture(
                "a capture in which Python may collect an older graph"
            )
        self.ledger.captures += 1
        tape.memory = pool or tape.memory
        self._captured = tape
        self.memory.pool = tape.memory
        try:
            yield
        finally:
            self._captured = self.memory.pool = None
            tape.undo()

    def wait(self, why: str):
        """Let the host wait until the device has finished all its work."""
        self._refuse_in_capture(why)
        if (
            threading.current_thread() is threading.main_thread()
        ):  # other threads may wait, since they do not train
            self.ledger.waits[f"{why} at {line()}"] += 1

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return self.run(operation, args, kwargs or {})

    def run(self, operation, args, kwargs):
        """Execute an operation on the host or on the device, depending on its tensors."""
        tensors = tensors_in((args, kwargs))
        if any(type(tensor) not in PLAIN for tensor in tensors):
            return operation(*args, **kwargs)  # another wrapper's turn
        if operation in operations.COPIES:
            return self._copied(operation, args, kwargs)
        if operation is aten.is_pinned.default:
            return self._is_pinned(values_of(args[0]))
        asked = kwargs.get("device")
        here = asked is not None and torch.device(asked).type == "cuda"
        if not here and (
            asked is not None
            or not any(isinstance(tensor, OnGPU) for tensor in tensors)
        ):
            return self._on_host(operation, *each(values_of, (args, kwargs)))
        if asked is None:  # a new tensor may have its shape from a tensor elsewhere
            self._check(operation, args, tensors)
        if operations.is_random(operation):
            self._refuse_in_capture("a draw of random numbers")
        given = each(
            values_of,
            (args, {**kwargs, "device": torch.device("cpu")} if here else kwargs),
        )
        if self._captured is not None and operation._schema.is_mutable:
            self._captured.keep(tensors_in(given))
        with torch.no_grad():
            result = operation(*given[0], **given[1])
        self._launched(operation, args, *given, result)
        return self._returned(operation, args, kwargs, result)

    def show(self, values):
        """Return a result of the CPU as a tensor on the device, and other values
        unchanged.
        """
        if not isinstance(values, Tensor) or isinstance(values, OnGPU):
            return values
        made = OnGPU(values, self)
        self.memory.hold(made)
        return made

    def _on_host(self, operation, args, kwargs):
        """Execute it unchanged, except for page-locked memory, which a machine without
        a GPU lacks.
        """
        if not kwargs.get("pin_memory"):
            return operation(*args, **kwargs)
        made = operation(*args, **{**kwargs, "pin_memory": False})
        key = made.untyped_storage().data_ptr()
        self._pinned.add(key)
        weakref.finalize(made.untyped_storage(), self._pinned.discard, key)
        return made

    def _check(self, operation, args, tensors):
        """Raise an error like CUDA's, and record waits of the host."""
        hosts = [tensor for tensor in tensors if not isinstance(tensor, OnGPU)]
        if operation in operations.INDEXING:
            self._check_index(operation, args, hosts)
        elif hosts and not (
            operations.takes_host_scalars(operation)
            and all(not host.dim() for host in hosts)
        ):
            shapes = [(tuple(tensor.shape), tensor.device.type) for tensor in tensors]
            raise WrongDevice(
                f"{operation} of tensors on two devices, {shapes}, at {line()}"
            )
        if operation is aten.split_with_sizes_copy.out and not args[0].is_contiguous():
            raise OutOfOrder(
                f"{operation} of rows that do not lie one after the other, at {line()}"
            )
        if (why := operations.why_it_waits(operation, args)) is not None:
            self.wait(why)

    def _check_index(self, operation, args, hosts):
        """Check the tensors of an indexing operation: the index may be on the CPU, and
        is copied; all others must be on the device.
        """
        puts = args[2:3] if len(args) > 2 else ()
        if not isinstance(args[0], OnGPU) or any(
            put is host and put.dim() for put in puts for host in hosts
        ):
            raise WrongDevice(f"{operation} with tensors on two devices at {line()}")
        for host in hosts:
            self._crossed(host, to_gpu=True, waits=True)

    def _launched(self, operation, args, inner, inner_keywords, result):
        """Record a launch, on the tape of the current capture if there is one."""
        if self._captured is not None:
            if not operations.launches_nothing(operation):
                self._captured.note(operation, inner, inner_keywords, result)
            return
        kernels = operations.kernels(operation, args)
        if kernels:
            name = operations.name_of(operation)
            self.ledger.launches[name] += kernels
            if (
                name in operations.UNORDERED
                and not torch.are_deterministic_algorithms_enabled()
            ):
                self.ledger.unordered[f"{name} at {line()}"] += 1

    def _returned(self, operation, args, kwargs, result):
        """Return the results as tensors on the device; for an operation in place these
        are its arguments.
        """
        schema = operation._schema
        if not schema.is_mutable:
            return each(self.show, result)
        positional = zip(schema.arguments, args, strict=False)
        given = {argument.name: value for argument, value in positional} | kwargs
        written = [
            given[argument.name]
            for argument in schema.arguments
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and argument.name in given
        ]
        for tensor in tensors_in(written):
            _follow(tensor)
        if not any(one.alias_info is not None for one in schema.returns):
            return each(
                self.show, result
            )  # such as batch norm, which also changes its statistics
        return written[0] if len(schema.returns) == 1 else tuple(written)

    def _copied(self, operation, args, kwargs):
        """Execute ``copy_`` or ``to``, between host and device or within one of them."""
        if operation is aten.copy_.default:
            target, source = args[:2]
            there, here = isinstance(target, OnGPU), isinstance(source, OnGPU)
            waits = not (
                args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            )
            result, inner, keywords = target, (values_of(target), values_of(source)), {}
            if self._captured is not None:
                self._captured.keep([inner[0]])
            with torch.no_grad():
                made = operation(*inner)
        else:
            source, asked = args[0], kwargs.get("device")
            here = isinstance(source, OnGPU)
            there = here if asked is None else torch.device(asked).type == "cuda"
            waits = not kwargs.get("non_blocking", False)
            inner = (values_of(source),)
            keywords = {
                key: value
                for key, value in kwargs.items()
                if key in ("dtype", "memory_format")
            }
            with torch.no_grad():
                made = operation(*inner, **keywords)
            result = self.show(made) if there else made
        if there and here:
            self._launched(operation, args, inner, keywords, made)
        elif there != here and source.numel():
            host = inner[-1] if there else values_of(result)
            pinned = self._is_pinned(host)
            self._crossed(
                host,
                there,
                waits or not (there or pinned),
                made.dtype != inner[-1].dtype,
            )
        return result

    def _is_pinned(self, host: Tensor) -> bool:
        return host.untyped_storage().data_ptr() in self._pinned

    def _crossed(self, host: Tensor, to_gpu: bool, waits: bool, converts: bool = False):
        """Record a copy between the host's tensor and the device."""
        pinned = self._is_pinned(host)
        what = f"a {'page-locked' if pinned else 'pageable'} copy {'to' if to_gpu else 'from'} the device"
        self._refuse_in_capture(what)
        shape = tuple(host.shape)
        self.ledger.copies.append(
            Copy(to_gpu, shape, host.nbytes, pinned, converts, line())
        )
        if waits:
            self.wait(what)

    def _refuse_in_capture(self, what: str):
        if self._captured is not None:
            raise IllegalInCapture(f"{what} while a graph is captured, at {line()}")


def _follow(tensor):
    """Update the shape of a tensor whose values were squeezed or transposed in place."""
    if isinstance(tensor, OnGPU) and (tensor.shape, tensor.stride()) != (
        tensor.values.shape,
        tensor.values.stride(),
    ):
        with torch._C._DisableTorchDispatch():
            tensor.as_strided_(
                tensor.values.shape,
                tensor.values.stride(),
                tensor.values.storage_offset(),
            )
