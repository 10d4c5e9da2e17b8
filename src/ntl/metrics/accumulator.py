"""What the metrics share: tensors that add up over batches and ranks, and numbers of any type."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ntl.protocol import last_number
from ntloss.numbers.parsing import Which, as_float, parse_number

if TYPE_CHECKING:
    from typing_extensions import Self


class Accumulator:
    """A float64 tensor that each batch adds to: its sums, or with `joined` its rows."""

    def __init__(self, *shape: int, joined: bool = False) -> None:
        self._shape, self._joined = shape, joined
        self._parts: list[Tensor] = []

    def _add(self, part: Tensor) -> None:
        """Add a batch, without a synchronization with its device."""
        if self._joined:
            self._parts.append(part)
        else:
            self._parts = [sum((other.to(part) for other in self._parts), part)]

    def _total(self) -> Tensor:
        """Return what all batches add up to, on the CPU."""
        nothing = torch.zeros(self._shape, dtype=torch.float64, device="cpu")
        parts = [nothing, *(part.to(nothing) for part in self._parts)]
        return torch.cat(parts) if self._joined else torch.stack(parts).sum(0)

    def reset(self) -> None:
        """Forget all batches."""
        self._parts = []

    def gathered(self, group: dist.ProcessGroup | None = None) -> Self:
        """Gather the batches of all ranks; a collective operation with the same result on every rank.

        Args:
            group: process group. Default: all processes, or this one alone without `torch.distributed`.

        Returns:
            A new object. Examples that a sampler repeats to fill the last batch count twice.
        """
        result = copy.copy(self)
        result._parts = gather(self._total(), group)
        return result


def gather(tensor: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Gather tensors of any length from all ranks, on the CPU.

    Without `torch.distributed`, return this tensor alone.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [tensor.cpu()]
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, tensor.cpu(), group=group)
    return gathered


def count_rows(count: float, skipped: float, invalid: float) -> dict[str, float]:
    """Return the counts with which metrics begin, and `invalid_rate`."""
    asked = count - skipped
    rate = invalid / asked if asked else math.nan
    return {"count": int(count), "skipped": int(skipped), "invalid": int(invalid), "invalid_rate": rate}


def read_numbers(given: Any, name: str) -> Tensor:
    """Convert a tensor, an array, or nested lists of numbers of any type and None to float64.

    A tensor stays on its device, as far as this has float64.
    """

    def floats(item: Any) -> Any:
        if hasattr(item, "__array__"):
            item = item.tolist()
        return [floats(i) for i in item] if isinstance(item, (list, tuple)) else as_float(item)

    if isinstance(given, Tensor) and not given.is_complex():
        return given.detach().to("cpu" if given.device.type == "mps" else given.device, torch.float64)
    try:
        return torch.tensor(floats(given), dtype=torch.float64, device="cpu")
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def _read(text: str, which: Which) -> float | None:
    return last_number(text) if which == "last" else parse_number(text, which)


def read_answers(given: Any, name: str, which: Which) -> tuple[Tensor, list[Any]]:
    """Return the numbers of texts or numbers, `[batch]`, and what they were given as, if in a list."""
    if getattr(getattr(given, "dtype", None), "kind", "") in tuple("fiub"):  # of a NumPy array
        given = torch.as_tensor(given)
    items: list[Any] = []
    if not isinstance(given, Tensor):
        is_list = isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))
        items = list(given) if is_list else []
        if not is_list or len({isinstance(item, str) for item in items if item is not None}) > 1:
            raise TypeError(f"{name}: given {given!r:.100}; expected a list of texts, or of numbers or None")
        given = [_read(item, which) if isinstance(item, str) else item for item in items]
    numbers = read_numbers(given, name)
    if numbers.dim() != 1:
        raise ValueError(f"{name} of shape {list(numbers.shape)}: expected [batch]")
    return numbers, items
