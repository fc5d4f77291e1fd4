"""Torch's own forward hooks around the modules of a model, taken off together.

``nn.TransformerEncoder``, its layers and ``nn.MultiheadAttention`` leave their fused fast path when they, or a module
inside them, have hooks of their own, and their output then changes in its last bits. Hooks for all modules of the
process do not count there: these modules are seen through one such hook, registered only if the model has any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from oattn_hub.types import Args, Kwargs

#: Torch modules with a fused fast path that they leave when they are watched.
FAST_PATH = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)

#: module, positional arguments, keyword arguments (empty for modules with a fast path)
Before = Callable[[nn.Module, Args, dict[str, Any]], None]
#: module, positional arguments, keyword arguments, whether forward ended well
After = Callable[[nn.Module, Args, dict[str, Any], bool], None]


_NOT_ENTERED = RuntimeError()


class ForwardHooks:
    """Calls ``before`` and ``after`` around every forward of some modules, until :meth:`remove`.

    Several sets of hooks on one module nest: the last one registered is the innermost.

    >>> layer, seen = nn.Identity(), []
    >>> def before(module, args, kwargs): seen.append(args)
    >>> def after(module, args, kwargs, well): seen.append(well)
    >>> hooks = ForwardHooks([layer], before, after)
    >>> layer(1), hooks.remove(), layer(2), seen
    (1, None, 2, [(1,), True])
    """

    def __init__(self, modules: Iterable[nn.Module], before: Before, after: After) -> None:
        self._before, self._after = before, after
        self._entered: list[BaseException | None] = []  # for every forward: the exception handled when it began
        self._fast_path: set[nn.Module] = set()
        self._handles: list[RemovableHandle] = []
        for module in modules:
            if isinstance(module, FAST_PATH):
                self._fast_path.add(module)
            else:
                self._handles += [
                    module.register_forward_pre_hook(self._enter, with_kwargs=True),
                    module.register_forward_hook(self._leave, prepend=True, with_kwargs=True, always_call=True),
                ]
        if self._fast_path:
            everywhere = torch.nn.modules.module
            self._handles += [
                everywhere.register_module_forward_pre_hook(self._enter_fast_path),
                everywhere.register_module_forward_hook(self._leave_fast_path, with_kwargs=True, always_call=True),
            ]

    def remove(self) -> None:
        """Take all hooks off; a second time does nothing."""
        for handle in self._handles:
            handle.remove()
            # torch forgets to: a process would count as hooked for ever, and torch.compile warns of it
            torch.nn.modules.module._global_forward_hooks_with_kwargs.pop(handle.id, None)
        self._handles.clear()

    def _enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        began = sys.exception()
        try:
            self._before(module, args, kwargs)
        except BaseException:
            self._entered.append(_NOT_ENTERED)
            raise
        self._entered.append(began)

    def _leave(self, module: nn.Module, args: Args, *rest: Any) -> None:
        """The rest is keyword arguments and result; torch leaves the first out for a forward that failed."""
        began = self._entered.pop() if self._entered else _NOT_ENTERED
        if began is not _NOT_ENTERED:
            # torch calls this while it handles the exception that ended forward
            self._after(module, args, rest[0] if len(rest) == 2 else {}, sys.exception() is began)

    def _enter_fast_path(self, module: nn.Module, args: Args) -> None:
        if module in self._fast_path:
            self._enter(module, args, {})

    def _leave_fast_path(self, module: nn.Module, args: Args, *rest: object) -> None:
        if module in self._fast_path:
            self._leave(module, args, *rest)


class Uncompiled:
    """Runs modules that were compiled in place (``module.compile()``) as they were written, until :meth:`restore`."""

    def __init__(self, model: nn.Module) -> None:
        found = {module: getattr(module, "_compiled_call_impl", None) for module in model.modules()}
        self._compiled = {module: call for module, call in found.items() if call is not None}
        for module in self._compiled:
            module._compiled_call_impl = None

    def restore(self) -> None:
        """Use the compiled code again; a second time does nothing."""
        for module, call in self._compiled.items():
            module._compiled_call_impl = call
        self._compiled = {}


@contextmanager
def as_written() -> Iterator[None]:
    """Run functions and modules that were compiled as they were written: compiled code need not see hooks."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def is_running(frame: FrameType) -> bool:
    """Whether ``frame`` is on the stack. Torch calls no hooks after Ctrl-C, so nothing else says that a call ended."""
    current: FrameType | None = sys._getframe()
    while current is not None:
        if current is frame:
            return True
        current = current.f_back
    return False
