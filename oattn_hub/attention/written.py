"""A softmax that is written out: powers of e divided by their sum, or the logarithm of a softmax taken back."""

from __future__ import annotations

from collections import deque

import torch

from oattn_hub.types import Args, Kwargs

_POWERS = {"exp", "exp_"}
_DIFFERENCES = {"sub", "__sub__", "sub_", "__isub__"}
_DIVISIONS = {"div", "div_", "__truediv__", "__itruediv__", "true_divide"}
STEPS = {"log_softmax", "logsumexp", *_POWERS, *_DIFFERENCES, *_DIVISIONS}


class WrittenSoftmax:
    """Remembers the last steps of a model that may be parts of a softmax, and says when one is whole."""

    def __init__(self) -> None:
        # few, since they are kept alive; a softmax is written in one breath
        self._powers: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=4)  # powers of e, and what of
        self._logs: deque[tuple[torch.Tensor, tuple[torch.Tensor, int]]] = deque(maxlen=2)
        self._sums: deque[tuple[torch.Tensor, tuple[torch.Tensor, int]]] = deque(maxlen=2)  # logarithms of sums

    def clear(self) -> None:
        """Forget all steps."""
        self._powers.clear()
        self._logs.clear()
        self._sums.clear()

    def ended_by(self, name: str, args: Args, kwargs: Kwargs, result: object) -> tuple[torch.Tensor, int] | None:
        """The logits and the axis of a softmax whose result is ``result``; None if this step does not end one."""
        if not isinstance(result, torch.Tensor) or result.ndim < 3 or not args:
            return None
        if name == "log_softmax":
            self._logs.append((result, (args[0], dimension(args, kwargs))))
        elif name == "logsumexp":
            axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            if isinstance(axis, int):
                self._sums.append((result, (args[0], axis)))
        elif name in _DIFFERENCES and self._sums and len(args) > 1:
            scores = next((given for log, given in self._sums if log is args[1] and given[0] is args[0]), None)
            if scores is not None:
                self._logs.append((result, scores))
        elif name in _POWERS:
            of_log = next((given for log, given in self._logs if log is args[0]), None)
            if of_log is not None:
                return of_log
            self._powers.append((result, args[0]))
        elif name in _DIVISIONS and self._powers:
            return self._normalised(args, result)
        return None

    def _normalised(self, args: Args, result: torch.Tensor) -> tuple[torch.Tensor, int] | None:
        exponent = next((exponent for power, exponent in self._powers if power is args[0]), None)
        divisor = args[1] if len(args) > 1 else None
        if exponent is None or not isinstance(divisor, torch.Tensor) or divisor.ndim != result.ndim:
            return None
        axes = [axis for axis in range(result.ndim) if divisor.shape[axis] == 1 < result.shape[axis]]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if len(axes) != 1 or bool((result.sum(axes[0]) - 1).abs().max() > 1e-3):
                return None
            changed = exponent is args[0] or args[0] is result  # in place: only the weights are left
            return result.log() if changed else exponent, axes[0]


def dimension(args: Args, kwargs: Kwargs) -> int:
    """The axis that a softmax was asked for."""
    return int(kwargs["dim"] if "dim" in kwargs else args[1] if len(args) > 1 else -1)
