"""Whether a loss sees numbers in the first labels of a training: their share, the first of them, warnings."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.callers import warn_caller
from ntloss.criteria.targets import HLGauss
from ntloss.engine.targets import IGNORED, PreparedLabels
from ntloss.losses import NTLCrossEntropyLoss
from ntloss.numbers import LabelNumbers, NumberVocabulary
from ntloss.numbers.fields import fields_of_labels
from ntloss.trainers.columns import has_rows

_ROWS = 100  # of a training set, whose labels are looked at before the first step
_NUMBERS = 3  # that are written


class NumberLabelsMissingWarning(UserWarning):
    """The labels that were looked at first hold no number tokens, or no number of a field."""


def number_share(labels: Tensor, vocabulary: NumberVocabulary) -> float:
    """Return the share of number tokens among the labels that count, 0 if there are none."""
    kept = labels[labels != IGNORED]
    ids = torch.tensor(vocabulary.token_ids, device=kept.device)
    return float(torch.isin(kept, ids).sum()) / max(len(kept), 1)


def first_labels(loader: Any, size: int, of_batch: Tensor) -> tuple[Tensor, int | None]:
    """Return the labels of the first rows of a loader, one after the other with an ignored one between rows.

    The second is how many rows these are, None if the data set is a stream: then they are those of a batch.
    """
    labels: list[Tensor] = []
    dataset: Any = getattr(loader, "dataset", None)
    rows = min(_ROWS, len(dataset)) if has_rows(dataset) else None
    if rows is not None:
        with same_random_numbers():
            for start in range(0, rows, size):
                batch = loader.collate_fn([dataset[i] for i in range(start, min(start + size, len(dataset)))])
                labels.append(torch.as_tensor(batch["labels"]))
    labels = labels or [of_batch]
    return torch.cat([F.pad(each, (0, 1), value=IGNORED).reshape(-1) for each in labels]), rows


def check_fields(loss: NTLCrossEntropyLoss, labels: Tensor, rows: int | None) -> None:
    """Warn of fields without a number in the first labels; raise a ValueError if that is all of them.

    A batch of a stream may hold no number of any field, such as that of one row.
    """
    if (found := loss.term.reader.fields) is None:
        return
    fields, by = found
    index = fields_of_labels(labels, loss.vocabulary, fields, by)
    missing = [name for i, name in enumerate(fields) if not (index == i).any()]
    message = (
        f"the labels of the first {'batch' if rows is None else f'{rows} rows'} have no number of "
        f"{', '.join(missing)}: expected the names of fields as they stand in the answers before their "
        "numbers, or another way to find them: HLGauss.for_fields(..., by=...), ntloss.numbers.find_fields"
    )
    if rows is not None and len(missing) == len(fields):
        raise ValueError(message)
    if missing:
        warn_caller(message, NumberLabelsMissingWarning)


def log_of(loss: NTLCrossEntropyLoss, labels: Tensor, record: PreparedLabels) -> dict[str, Any]:
    """Return the share of number tokens in labels, and the first numbers of a record; warn without."""
    logs: dict[str, Any] = {"number_share": number_share(labels, loss.vocabulary)}
    if not logs["number_share"]:
        warn_caller(
            f"none of the {int((labels != IGNORED).sum()):,} labels of the first rows is a number token, so "
            "the number term is 0: inspect_tokenizer(tokenizer) shows how numbers are written. If they are "
            "written in other tokens, pass vocabulary=NumberVocabulary.from_tokenizer(tokenizer, ...).",
            NumberLabelsMissingWarning,
        )
    if record.numbers is None:
        return logs
    numbers = LabelNumbers.unpack(record.numbers.cpu().reshape(-1, record.numbers.shape[-1]))
    own = record.labels.cpu()
    if number_share(own[own >= 0], loss.vocabulary) and not numbers.length.any():
        warn_caller(
            "the number tokens of the first labels belong to no number of their text, so the criterion does "
            "not see them: their digits stand in words (x1), or tokens beside them are unknown. See "
            "docs/numbers.md, and decode the labels to see their text",
            NumberLabelsMissingWarning,
        )
    starts, criterion = numbers.starts > 0, loss.criterion
    first = numbers.magnitude[starts][:_NUMBERS].tolist()
    written = [f"{number:.15g}" for number in first]
    if isinstance(criterion, HLGauss):
        sigma, relative = 0.0 if criterion.fields else float(criterion.sigma), criterion.relative
        usual = [math.hypot(sigma, relative * x) for x in first]
        given = usual if record.sigma is None else record.sigma.cpu().reshape(-1)[starts].tolist()
        widths = [own if own > 0 else other for own, other in zip(given, usual, strict=False)]
        written = [f"{number} ± {width:.3g}" for number, width in zip(written, widths, strict=True)]
    return logs | ({"first_numbers": ", ".join(written)} if written else {})


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Leave the random numbers that follow as they would be without the block."""
    numpy: Any = sys.modules.get("numpy")
    state, of_numpy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
