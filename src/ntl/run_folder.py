"""What a run leaves behind: the one place that knows the files of a run's folder.

    run.json                  what was run: RunRecord
    metrics.json              test set -> metric -> value (null where it is not defined)
    evaluation.json           test set -> what was evaluated and how: a result is used again only for the same
    predictions_<test>.jsonl  one question a line: question, answer, text, predicted, true
    learning_curve.jsonl      one evaluation during training a line: step, eval_loss, eval_mae, ...
    evaluations/<settings>/   an evaluation with other settings than the run's own: the first four files again

Whatever is read again is written whole: a run that is killed leaves the file before or the file after.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from ntl.errors import UserError
from ntl.records import write_whole

FORMAT = 1
EVALUATIONS = "evaluations"
CHECKPOINT = "checkpoint-"  # as transformers begins their names
LONGEST_NAME = 120  # of a folder, before a hash takes the rest's place

Metrics = dict[str, float | None]


@dataclass(frozen=True)
class RunRecord:
    """What was run.

    Args:
        name: Of the model (`vanilla_t5_ntl`, ...).
        objective: How tables and figures call it (`T5 + NTL-WAS`).
        dataset: Of the task.
        seed: Of the run; tables are over seeds.
        config: The whole composed configuration. Runs whose configurations differ in more than seeds and
            paths are told apart in tables.
        status: `running` until training and evaluation are done.
        steps: Updates done.
        train_seconds: Spent in training, over all resumptions.
        parameters: Of the model.
        versions: Package -> version.
    """

    name: str
    objective: str
    dataset: str
    seed: int
    config: Mapping[str, Any]
    status: Literal["running", "finished"] = "running"
    steps: int = 0
    train_seconds: float = 0.0
    parameters: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)


class Prediction(NamedTuple):
    """One answered question.

    Args:
        question: What was asked.
        answer: What should have been answered.
        text: What the model wrote.
        predicted: The number of `text` that counts; None where there is none.
        true: The number of `answer` that counts; None where there is none, or numbers are not compared.
    """

    question: str
    answer: str
    text: str
    predicted: float | None
    true: float | None


class RunFolder:
    """The files of one run.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def record_path(self) -> Path:
        """`run.json`."""
        return self.path / "run.json"

    @property
    def metrics_path(self) -> Path:
        """`metrics.json`."""
        return self.path / "metrics.json"

    @property
    def evaluation_path(self) -> Path:
        """`evaluation.json`."""
        return self.path / "evaluation.json"

    @property
    def curve_path(self) -> Path:
        """`learning_curve.jsonl`."""
        return self.path / "learning_curve.jsonl"

    def predictions_path(self, test: str) -> Path:
        """`predictions_<test>.jsonl`; what no file name can hold is percent-encoded."""
        return self.path / f"predictions_{quote(test, safe='')}.jsonl"

    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return self.record_path.exists()

    def evaluation(self, settings: Mapping[str, Any]) -> RunFolder:
        """The folder of an evaluation with other settings than the run's own; it need not exist.

        Args:
            settings: What differs, by name; different settings have different folders.
        """
        name = ",".join(f"{key}={shown(settings[key])}" for key in sorted(settings))
        name = quote(name, safe="=,")
        if len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return RunFolder(self.path / EVALUATIONS / name)

    def evaluations(self) -> list[RunFolder]:
        """The evaluations with other settings that are here, by name."""
        return [RunFolder(path.parent) for path in sorted((self.path / EVALUATIONS).glob("*/run.json"))]

    def record(self) -> RunRecord:
        """Read what was run.

        Raises:
            UserError: The file is absent, or is no such record.
        """
        content = _read_json(self.record_path)
        if content.get("format") != FORMAT:
            raise UserError(
                f"{self.record_path} has format {content.get('format')!r}; expected {FORMAT}, which this "
                "version of ntl writes. Leave that folder out, or repeat the run."
            )
        names = [f.name for f in fields(RunRecord)]
        if missing := [name for name in names if name not in content]:
            raise UserError(
                f"{self.record_path} lacks {', '.join(missing)}; expected what a training run writes. Leave "
                "that folder out, or repeat the run."
            )
        return RunRecord(**{name: content[name] for name in names})

    def write_record(self, record: RunRecord) -> None:
        """Write what is run, in place of what is there; the folder is made."""
        self.path.mkdir(parents=True, exist_ok=True)
        _write_json(self.record_path, {"format": FORMAT, **asdict(record)})

    def metrics(self) -> dict[str, Metrics]:
        """Read the metrics, by test set; empty before the first is evaluated.

        Raises:
            UserError: The file is not readable.
        """
        return _read_json(self.metrics_path) if self.metrics_path.exists() else {}

    def is_evaluated(self, test: str, identity: Mapping[str, Any]) -> bool:
        """Whether a test set's results are here, of the same model, data and protocol.

        Args:
            test: Name of the test set.
            identity: What `write_results` was given.

        Returns:
            True where they need not be made again.

        Raises:
            UserError: A file is not readable.
        """
        known = _read_json(self.evaluation_path) if self.evaluation_path.exists() else {}
        same = json.dumps(known.get(test), sort_keys=True) == json.dumps(identity, sort_keys=True)
        return same and test in self.metrics() and self.predictions_path(test).exists()

    def questions(self, test: str) -> str | None:
        """What tells a test set's questions from others; None where that was not written."""
        known = _read_json(self.evaluation_path) if self.evaluation_path.exists() else {}
        return known.get(test, {}).get("questions")

    def write_results(
        self,
        test: str,
        metrics: Mapping[str, float | None],
        predictions: Sequence[Prediction],
        identity: Mapping[str, Any],
    ) -> None:
        """Write the results of one test set, in place of those that are there; other test sets stay.

        Args:
            test: Name of the test set.
            metrics: Metric -> value, finite or None.
            predictions: In the test set's order.
            identity: What was evaluated, and how (JSON); `questions` in it tells test sets apart.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        known = _read_json(self.evaluation_path) if self.evaluation_path.exists() else {}
        # In this order, a run that is killed in between leaves results that nobody takes for finished ones.
        _write_json(self.evaluation_path, {name: known[name] for name in known if name != test})
        _write_lines(self.predictions_path(test), (p._asdict() for p in predictions))
        _write_json(self.metrics_path, {**self.metrics(), test: dict(metrics)})
        _write_json(self.evaluation_path, {**known, test: dict(identity)})

    def predictions(self, test: str) -> list[Prediction]:
        """Read the predictions of one test set, in its order.

        Raises:
            UserError: The file is absent or not readable.
        """
        path = self.predictions_path(test)
        try:
            return [Prediction(**row) for row in _read_lines(path)]
        except TypeError as error:
            raise UserError(
                f"{path} holds no predictions ({error}); expected lines with {', '.join(Prediction._fields)}."
                " Repeat the evaluation."
            ) from None

    def curve(self) -> list[dict[str, float | None]]:
        """Read the learning curve, by step; empty where none was measured.

        Raises:
            UserError: The file is not readable.
        """
        return _read_lines(self.curve_path) if self.curve_path.exists() else []

    def add_to_curve(self, point: Mapping[str, float | None]) -> None:
        """Add a point to the learning curve.

        A run that is resumed comes by some steps again: points from this step on are replaced.

        Args:
            point: `step`, and what was measured (`eval_loss`, `eval_mae`, ...), finite or None.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        before = [p for p in self.curve() if p["step"] < point["step"]]
        _write_lines(self.curve_path, [*before, point])


def find_runs(folders: Sequence[Path | str]) -> list[RunFolder]:
    """Find the runs in folders, and in the folders below.

    Args:
        folders: Runs themselves, or what holds them; some may be without.

    Returns:
        Each run once, in the order of the folders, by path within one. Evaluations and checkpoints in a run's
        folder count only where the folder asked for lies inside of that run.

    Raises:
        UserError: A folder does not exist, or none holds a run.
    """
    found: dict[Path, RunFolder] = {}
    for folder in map(Path, folders):
        if not folder.exists():
            raise UserError(f"{folder} does not exist; expected the folder of a run, or one that holds some.")
        for record in sorted(folder.rglob("run.json")):
            outer = _outer_run(record.parent)
            if outer is not None and outer.is_relative_to(folder):
                continue
            found.setdefault(record.parent.resolve(), RunFolder(record.parent))
    if not found:
        raise UserError(
            f"{', '.join(map(str, folders))}: no run there or below (no run.json); expected output folders "
            "of training."
        )
    return list(found.values())


def shown(value: Any) -> str:
    """A setting as its user writes it: `null`, `true`, `0.3`."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _outer_run(path: Path) -> Path | None:
    """The run that an evaluation or a checkpoint belongs to; None for a run of its own."""
    outer = path.parent.parent if path.parent.name == EVALUATIONS else path.parent
    belongs = path.parent.name == EVALUATIONS or path.name.startswith(CHECKPOINT)
    return outer if belongs and (outer / "run.json").exists() else None


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    write_whole(path, "".join(lines))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}, no object")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return content


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        # By "\n" alone: texts may hold the other separators that `splitlines` knows.
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} cannot be read ({error}); expected JSON that training or evaluation wrote. Leave that "
        "folder out, or repeat the run."
    )
