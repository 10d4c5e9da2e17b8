"""The contenders: ways to compute a loss and its gradients on the same inputs."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from measure import Contender
from torch import Tensor

import ntloss
from ntloss.criteria import CRITERIA

PUBLISHED = Path(__file__).resolve().parent.parent / ".published"
WEIGHT = 0.3

CE = "F.cross_entropy"
HEAD = "head + F.cross_entropy"
OURS = "NTLCrossEntropyLoss"
OURS_HIDDEN = "NTLCrossEntropyLoss.from_hidden"
COMPILED, OFF = ", compiled", ", NTL off"
OLD, OLD_PLAIN = "CE + ntloss 0.3.2", "CE + ntloss 0.3.2, reweigh=False"
TORCH_LINEAR, TORCH_CHUNKED = "F.linear_cross_entropy", "F.linear_cross_entropy, chunked"
LIGER, LIGER_LINEAR, CUT = "Liger CE", "Liger fused linear CE", "cut-cross-entropy"


class UnavailableError(Exception):
    """A contender cannot run here; the message says why."""


@dataclass(frozen=True)
class Case:
    """Inputs of one comparison.

    Args:
        tokens: Number of positions.
        vocab_size: Vocabulary size V.
        share: Share of the positions whose label is a number.
        numbers: Number of number tokens |N|: 10 (digits) or 1,110 (all texts of one to three digits, with
            1,000 distinct values).
        hidden: Width of the hidden states, or None if the inputs are logits.
        dtype: Data type of the inputs.
        device: "cpu" or "cuda".
    """

    tokens: int
    vocab_size: int
    share: float = 0.5
    numbers: int = 10
    hidden: int | None = None
    dtype: str = "float32"
    device: str = "cpu"

    @property
    def logits_bytes(self) -> int:
        return self.tokens * self.vocab_size * getattr(torch, self.dtype).itemsize

    @property
    def gradient_bytes(self) -> int:
        """Size of the gradients that every contender must return; those of logits can be avoided."""
        if self.hidden is None:
            return 0
        return (self.tokens + self.vocab_size) * self.hidden * getattr(torch, self.dtype).itemsize


class Inputs:
    """The tensors of a case, the same for every contender."""

    def __init__(self, case: Case) -> None:
        self.case = case
        torch.manual_seed(0)
        random = torch.Generator().manual_seed(0)
        texts = number_texts(case.numbers)
        shuffled = torch.randperm(case.vocab_size, generator=random)
        number_ids, text_ids = shuffled[: len(texts)], shuffled[len(texts) :]
        self.texts = dict(zip(number_ids.tolist(), texts, strict=True))
        is_number = torch.randperm(case.tokens, generator=random) < round(case.share * case.tokens)
        draws = torch.randint(1 << 40, (case.tokens,), generator=random)
        labels = torch.where(
            is_number, number_ids[draws % len(number_ids)], text_ids[draws % max(len(text_ids), 1)]
        )
        self.labels = labels.unsqueeze(0).to(case.device)
        shapes = {"logits": (1, case.tokens, case.vocab_size)}
        if case.hidden is not None:
            shapes = {"hidden": (1, case.tokens, case.hidden), "weight": (case.vocab_size, case.hidden)}
        dtype = getattr(torch, case.dtype)
        tensors = []
        for shape in shapes.values():
            # Fill in place: a large float32 draw would set the process's peak memory.
            tensor = torch.empty(shape, dtype=dtype, device=case.device).normal_()
            tensors.append(tensor.mul_(case.hidden**-0.25 if case.hidden else 1.0).requires_grad_())
        self.tensors = tuple(tensors)

    def vocabulary(self) -> ntloss.NumberVocabulary:
        return ntloss.NumberVocabulary.from_mapping(self.texts, vocab_size=self.case.vocab_size)


def number_texts(count: int) -> list[str]:
    """Return the shortest texts of digits: all of one digit, then all of two, and so on."""
    texts: list[str] = []
    while len(texts) < count:
        width = len(texts[-1]) + 1 if texts else 1
        texts += [f"{value:0{width}d}" for value in range(10**width)]
    if len(texts) != count:
        raise ValueError(f"numbers is {count}; expected 10, 110, 1,110, ...")
    return texts


def criterion_of(name: str, numbers: int) -> dict[str, Any]:
    """Return a criterion of the library, by name; with tokens of several digits, NTL-WAS is squashed."""
    options: dict[str, dict[str, Any]] = {"hl_gauss": {"sigma": 1.0}}
    if numbers > 10:
        options["ntl_was"] = {"squash": 2.0}
    return {"name": name, **options.get(name, {})}


def criteria(numbers: int) -> list[str]:
    """Return the names of the criteria that can be used with so many number tokens."""
    of_digits = ("ntl_mse", "ntl_mae", "ntl_huber", "crps", "smoothed_wasserstein", "ntil")
    return [name for name in CRITERIA if numbers == 10 or name not in of_digits]


def build(name: str, inputs: Inputs, criterion: str | None = None) -> Contender:
    """Build a contender.

    Args:
        name: One of this module's names. Ours take the suffixes `COMPILED` and `OFF`.
        inputs: Inputs of the case.
        criterion: One of `criteria(...)`, for ours. Default: the library's default.

    Raises:
        UnavailableError: A dependency of the contender is missing.
    """
    if COMPILED in name:
        _need_compiler(inputs.case.device)
    base = name.replace(COMPILED, "").replace(OFF, "")
    if base in (OURS, OURS_HIDDEN):
        return _ours(name, base, inputs, criterion)
    loss: Callable[..., Tensor] = _OTHERS[base](inputs)
    if COMPILED in name:
        loss = torch.compile(loss, dynamic=False)

    def run(*tensors: Tensor) -> object:
        return torch.autograd.grad(loss(*tensors, inputs.labels), tensors)

    return _destroying(run, inputs) if base == LIGER else Contender(lambda: run(*inputs.tensors))


def _ours(name: str, base: str, inputs: Inputs, criterion: str | None) -> Contender:
    made = None if OFF in name else criterion_of(criterion or "ntl_was", inputs.case.numbers)
    module = ntloss.NTLCrossEntropyLoss(inputs.vocabulary(), made, WEIGHT, mode="add").to(inputs.case.device)
    loss: Callable[..., Tensor] = torch.compile(module, dynamic=False) if COMPILED in name else module
    if base == OURS_HIDDEN:
        loss = module.from_hidden
    return Contender(lambda: torch.autograd.grad(loss(*inputs.tensors, inputs.labels), inputs.tensors))


def _destroying(run: Callable[..., object], inputs: Inputs) -> Contender:
    """Make a contender that overwrites its inputs: it has its own copies, restored before each run."""
    own = tuple(tensor.detach().clone().requires_grad_() for tensor in inputs.tensors)

    def refill() -> None:
        for mine, given in zip(own, inputs.tensors, strict=True):
            mine.data.copy_(given.data)

    return Contender(lambda: run(*own), refill)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _head_and_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return _cross_entropy(F.linear(hidden, weight), labels)


def _published(inputs: Inputs, reweigh: bool) -> Callable[..., Tensor]:
    number_loss = published_package().NTLoss(
        _Tokenizer(inputs), digit_level=inputs.case.numbers == 10, reweigh=reweigh
    )
    return lambda logits, labels: _cross_entropy(logits, labels) + WEIGHT * number_loss(logits, labels)


def _torch_linear(_: Inputs, chunked: bool) -> Callable[..., Tensor]:
    if not hasattr(F, "linear_cross_entropy"):
        raise UnavailableError(f"PyTorch {torch.__version__} has no F.linear_cross_entropy")
    options = torch.nn.LinearCrossEntropyOptions() if chunked else None
    return lambda hidden, weight, labels: F.linear_cross_entropy(
        hidden.flatten(0, 1), weight, labels.flatten(), options=options
    )


def _liger(_: Inputs) -> Callable[..., Tensor]:
    loss = _module("liger_kernel.transformers").LigerCrossEntropyLoss()
    return lambda logits, labels: loss(logits.flatten(0, 1), labels.flatten())


def _liger_linear(_: Inputs) -> Callable[..., Tensor]:
    loss = _module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss()
    return lambda hidden, weight, labels: loss(weight, hidden.flatten(0, 1), labels.flatten())


def _cut(_: Inputs) -> Callable[..., Tensor]:
    function = _module("cut_cross_entropy").linear_cross_entropy
    return lambda hidden, weight, labels: function(hidden.flatten(0, 1), weight, labels.flatten())


_OTHERS: dict[str, Callable[[Inputs], Callable[..., Tensor]]] = {
    CE: lambda _: _cross_entropy,
    HEAD: lambda _: _head_and_cross_entropy,
    OLD: partial(_published, reweigh=True),
    OLD_PLAIN: partial(_published, reweigh=False),
    TORCH_LINEAR: partial(_torch_linear, chunked=False),
    TORCH_CHUNKED: partial(_torch_linear, chunked=True),
    LIGER: _liger,
    LIGER_LINEAR: _liger_linear,
    CUT: _cut,
}


class _Tokenizer:
    """The part of a tokenizer's interface that the published package uses."""

    def __init__(self, inputs: Inputs) -> None:
        self._vocab = {inputs.texts.get(i, f"word{i}"): i for i in range(inputs.case.vocab_size)}

    def __len__(self) -> int:
        return len(self._vocab)

    def get_vocab(self) -> dict[str, int]:
        return self._vocab

    def add_tokens(self, tokens: list[str]) -> int:
        return len(set(tokens) - set(self._vocab))


@cache
def published_package() -> ModuleType:
    """Import the published package under another name, because it is called `ntloss` too."""
    start = PUBLISHED / "ntloss" / "__init__.py"
    if not start.exists():
        raise UnavailableError("ntloss 0.3.2 is not installed: run `make published`")
    # Last on the path, so that `import ntloss` stays ours; the folder also holds its dependencies.
    sys.path.append(str(PUBLISHED))
    name = "published_ntloss"
    spec = spec_from_file_location(name, start, submodule_search_locations=[str(start.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        del sys.modules[name]
        raise UnavailableError(f"ntloss 0.3.2 cannot be imported: {error}") from error
    return module


def versions() -> dict[str, str]:
    """Return the versions of the contenders' installed packages."""
    others = [p for p in ("liger-kernel", "cut-cross-entropy", "triton") if find_spec(p.replace("-", "_"))]
    return {"ntloss": ntloss.__version__, **{package: version(package) for package in others}}


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(f"{name.split('.')[0]} cannot be imported: {error}") from error


def _need_compiler(device: str) -> None:
    if device != "cpu":
        return
    candidates = [os.environ.get("CXX"), "g++", "clang++", "c++"]
    if not any(candidate and shutil.which(candidate) for candidate in candidates):
        raise UnavailableError("torch.compile on the CPU needs a C++ compiler, such as g++")
