"""Standing around a module while it runs.

Not torch's forward hooks: an encoder layer of torch that has one leaves its fused fast path, and its output changes in
the last bits. A module's ``forward`` is surrounded instead, and put back when the block ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]
#: Called with the original forward, its positional and its keyword arguments; returns what the module returns.
Around = Callable[[Forward, tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def surrounded(module: nn.Module, around: Around) -> Iterator[None]:
    """Let ``around`` run whenever ``module`` runs, until the block ends.

    >>> import torch
    >>> layer, seen = torch.nn.Identity(), []
    >>> with surrounded(layer, lambda forward, args, kwargs: seen.append(args) or forward(*args, **kwargs)):
    ...     layer(1)
    1
    >>> layer(2), seen
    (2, [(1,)])
    """
    forward = module.forward
    own = module.__dict__.get("forward")  # set by others, such as accelerate, on this instance

    @functools.wraps(forward)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(forward, args, kwargs)

    module.forward = replacement
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own
