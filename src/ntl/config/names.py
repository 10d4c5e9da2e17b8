"""Name models, losses and settings in tables, figures and folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ntl.config.settings import LossSettings, ModelSettings

_ENCODING_NAMES = {"rt": "RT", "xval": "xVal"}
_CRITERION_NAMES = {
    "wasserstein": "NTL-WAS",
    "crps": "CRPS",
    "gaussian_cross_entropy": "Gaussian smoothing",
    "smoothed_wasserstein": "smoothed NTL-WAS",
    "dist2": "DIST2",
    "digit_entropy": "DEL",
    "smmd": "SMMD",
    "ntil": "NTIL",
    "number_level": "number-level NTL",
}
_LOSS_NAMES = {"squared": "NTL-MSE", "absolute": "NTL-MAE", "huber": "NTL-Huber"}


def objective_name(model: ModelSettings, loss: LossSettings) -> str:
    """Return a run's name in tables, such as `T5`, `T5 + NTL-WAS`, `RT + NTL-MSE` or `Llama`."""
    name = {"t5": "T5", "pretrained": Path(str(model.checkpoint)).name.removesuffix(".gguf")}.get(
        model.family
    )
    name = name or str(model.config.get("model_type", "decoder")).capitalize()
    name = _ENCODING_NAMES.get(model.encoding, name)
    if model.head == "regression":
        return f"{name} regression head"
    return " + ".join(filter(None, (name, loss_name(loss))))


def loss_name(loss: LossSettings) -> str:
    """Return the criterion's name in tables, such as `NTL-WAS` or `SMMD`; "" without a criterion."""
    return _criterion_name(loss.criterion, loss.options) if loss.criterion is not None else ""


def format_setting(value: Any) -> str:
    """Format a setting as the user writes it: `null`, `true`, `0.3`, `[greedy,median]`."""
    if isinstance(value, list):
        return f"[{','.join(map(format_setting, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _criterion_name(criterion: str, options: Mapping[str, Any]) -> str:
    if criterion == "expected_value":
        loss = options.get("loss", "squared")
        if options.get("over") == "vocabulary":
            return "RAFT" if loss == "squared" else f"RAFT ({loss})"
        return _LOSS_NAMES.get(loss, criterion)
    if criterion == "weighted_sum":
        parts = [{"name": p} if isinstance(p, str) else p for p in options.get("criteria", ())]
        return " + ".join(_criterion_name(part["name"], part) for part in parts) or criterion
    return _CRITERION_NAMES.get(criterion, criterion)
