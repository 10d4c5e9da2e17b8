"""Read and write the files of a run's folder. No other module knows their format.

    run.json                  what was run (RunRecord)
    metrics.json              test set -> metric -> value (null if undefined)
    evaluation.json           test set -> what was evaluated and how; decides whether results are reused
    predictions_<test>.jsonl  one line per question: question, answer, text, predicted, true (, lower, ...)
    learning_curve.jsonl      one line per evaluation during training: step, eval_loss, eval_mae, ...
    evaluations/<name>/       the first four files, for an evaluation that is not the run's own

Files are written atomically: if a run is killed, each file holds either its old or its new content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

from ntl.config.schema import format_setting
from ntl.data.files import write_atomically, write_json
from ntl.errors import UserError

FORMAT = 1
SECTIONS = ("evaluation", "dataset_args", "model_args", "training_args", "loss")  # of a configuration
EVALUATIONS = "evaluations"
CHECKPOINT = "checkpoint-"  # transformers' prefix of checkpoint folders
LONGEST_NAME = 60  # longer folder names are cut and end in a hash

Metrics = dict[str, float | None]
T = TypeVar("T")


@dataclass(frozen=True)
class RunRecord:
    """What was run.

    Args:
        name: Name of the model (`vanilla_t5_ntl`, ...).
        objective: Name in tables and figures (`T5 + NTL-WAS`).
        dataset: Name of the dataset.
        seed: Random seed of the run. Tables aggregate over seeds.
        config: The whole composed configuration. Runs whose configurations differ in more than seeds and
            paths are separate rows of a table.
        status: `running` until training and evaluation are done.
        steps: Number of updates done.
        train_seconds: Training time in seconds, including earlier parts of a resumed run.
        parameters: Number of the model's parameters.
        versions: Maps each package to its version.
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
    """One answered question: the model's `text` beside the correct `answer`.

    `predicted` and `true` are the last numbers of both; None without one, or if numbers are not compared. The
    ends of the model's interval, the median and the mean of its distribution are None if they were not read.
    """

    question: str
    answer: str
    text: str
    predicted: float | None
    true: float | None
    lower: float | None = None
    median: float | None = None
    upper: float | None = None
    mean: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the fields by name, without those that were not read."""
        optional = self._field_defaults
        return {k: v for k, v in self._asdict().items() if v is not None or k not in optional}


class RunFolder:
    """The files of one run, whose folder need not exist.

    Reading raises a `UserError` if a file cannot be read.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.record_path = self.path / "run.json"
        self.metrics_path = self.path / "metrics.json"
        self.evaluation_path = self.path / "evaluation.json"
        self.curve_path = self.path / "learning_curve.jsonl"

    def __str__(self) -> str:
        return str(self.path)

    def predictions_path(self, test: str) -> Path:
        """Return the path of `predictions_<test>.jsonl`; special characters are percent-encoded."""
        return self.path / f"predictions_{quote(test, safe='')}.jsonl"

    def holds_run(self) -> bool:
        """Return whether a run was started in this folder."""
        return self.record_path.exists()

    def evaluation(self, name: str) -> RunFolder:
        """Return the folder of an evaluation that is not the run's own; it need not exist."""
        if not name.strip("."):  # the folders `.` and `..`
            raise UserError(
                f"evaluation.name={name} is not the name of a folder; expected one such as few. Correct it."
            )
        return RunFolder(self.path / EVALUATIONS / quote(name, safe="=,[] "))

    def evaluations(self) -> list[RunFolder]:
        """List the existing evaluations that are not the run's own, sorted by name."""
        return [RunFolder(path.parent) for path in sorted((self.path / EVALUATIONS).glob("*/run.json"))]

    def record(self) -> RunRecord:
        """Read what was run."""
        content = _read(self.record_path, _parse_object)
        if content.get("format") != FORMAT:
            raise UserError(
                f"{self.record_path} has format {content.get('format')!r}; expected {FORMAT}, which this "
                "version of ntl writes. Omit that folder, or repeat the run."
            )
        names = [f.name for f in fields(RunRecord)]
        if missing := [name for name in names if name not in content]:
            raise UserError(
                f"{self.record_path} lacks {', '.join(missing)}; expected the record of a training run. Omit "
                "that folder, or repeat the run."
            )
        kinds: dict[str, type] = {"objective": str, "dataset": str, "seed": int, "config": dict, "steps": int}
        values = content | (content["config"] if isinstance(content["config"], dict) else {})
        for name, kind in (kinds | dict.fromkeys(SECTIONS, dict)).items():
            if not isinstance(value := values.get(name, {}), kind):
                raise UserError(
                    f"{self.record_path}: {name} is {value!r:.80}; expected {kind.__name__}, as training "
                    "writes it. Omit that folder, or repeat the run."
                )
        return RunRecord(**{name: content[name] for name in names})

    def write_record(self, record: RunRecord) -> None:
        """Write `run.json`, replacing an earlier one. The folder is created if necessary."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.record_path, {"format": FORMAT, **asdict(record)})

    def metrics(self) -> dict[str, Metrics]:
        """Read the metrics by test set; empty before the first evaluation."""
        return _read(self.metrics_path, _parse_objects) if self.metrics_path.exists() else {}

    def _identities(self) -> dict[str, Any]:
        return _read(self.evaluation_path, _parse_objects) if self.evaluation_path.exists() else {}

    def is_evaluated(self, test: str, identity: Mapping[str, Any]) -> bool:
        """Return whether a test set was evaluated with the identity that `write_results` takes."""
        same = self._identities().get(test) == identity
        return same and test in self.metrics() and self.predictions_path(test).exists()

    def questions(self, test: str) -> str | None:
        """Read the fingerprint of a test set's questions, or None if it was not recorded."""
        return self._identities().get(test, {}).get("questions")

    def write_results(
        self,
        test: str,
        metrics: Mapping[str, float | None],
        predictions: Sequence[Prediction],
        identity: Mapping[str, Any],
    ) -> None:
        """Write the results of one test set, replacing earlier ones. Other test sets are unchanged.

        `metrics` are finite or None, `predictions` in the test set's order, and `identity` JSON values that
        say what was evaluated and how, with the test set's fingerprint as `questions`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        known = self._identities()
        # This order ensures that results are never taken for complete if the run is killed in between.
        write_json(self.evaluation_path, {name: known[name] for name in known if name != test})
        _write_lines(self.predictions_path(test), (prediction.row() for prediction in predictions))
        write_json(self.metrics_path, {**self.metrics(), test: dict(metrics)})
        write_json(self.evaluation_path, {**known, test: dict(identity)})

    def predictions(self, test: str) -> list[Prediction]:
        """Read the predictions of one test set, in its order."""
        path = self.predictions_path(test)
        return _read(path, lambda text: [Prediction(**row) for row in _parse_lines(text)])

    def curve(self) -> list[dict[str, float | None]]:
        """Read the learning curve, sorted by step; empty if none was measured."""
        return _read(self.curve_path, _parse_lines) if self.curve_path.exists() else []

    def add_to_curve(self, point: Mapping[str, float | None]) -> None:
        """Add a point, `step` and finite metrics, to the learning curve; a resumed run repeats some."""
        self.path.mkdir(parents=True, exist_ok=True)
        before = [p for p in self.curve() if p["step"] < point["step"]]
        _write_lines(self.curve_path, [*before, point])


def options_name(options: Mapping[str, Any]) -> str:
    """Make a name of options: `beams=1,samples=20`. Long ones are cut and end in a hash."""
    name = ",".join(f"{key}={format_setting(options[key])}" for key in sorted(options))
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name


def find_runs(folders: Sequence[Path | str]) -> list[RunFolder]:
    """Find each run in folders, in their order and sorted by path within each.

    Evaluations and checkpoints inside a run are included only if the given folder lies inside that run.
    """
    found: dict[Path, RunFolder] = {}
    for folder in map(Path, folders):
        if not folder.exists():
            raise UserError(f"{folder} does not exist; expected a folder that is or contains a run.")
        for record in sorted(folder.rglob("run.json")):
            outer = _outer_run(record.parent)
            if outer is not None and outer.is_relative_to(folder):
                continue
            found.setdefault(record.parent.resolve(), RunFolder(record.parent))
    if not found:
        raise UserError(
            f"{', '.join(map(str, folders))}: no run in these folders or their subfolders (no run.json); "
            "expected output folders of training."
        )
    return list(found.values())


def _outer_run(path: Path) -> Path | None:
    """Return the run that an evaluation or a checkpoint belongs to, or None for a run itself."""
    outer = path.parent.parent if path.parent.name == EVALUATIONS else path.parent
    belongs = path.parent.name == EVALUATIONS or path.name.startswith(CHECKPOINT)
    return outer if belongs and (outer / "run.json").exists() else None


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    write_atomically(path, "".join(lines))


def _parse_object(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"it is a {type(content).__name__}, not an object")
    return content


def _parse_objects(text: str) -> dict[str, dict[str, Any]]:
    content = _parse_object(text)
    if wrong := [name for name, value in content.items() if not isinstance(value, dict)]:
        raise ValueError(f"{wrong[0]!r} is not an object")
    return content


def _parse_lines(text: str) -> list[dict[str, Any]]:
    # Split at "\n" only: texts may contain other separators that `splitlines` splits at.
    return [_parse_object(line) for line in text.split("\n") if line]


def _read(path: Path, parse: Callable[[str], T]) -> T:
    """Read a file; a UserError says why it cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); expected JSON that training or evaluation wrote. Omit that "
            "folder, or repeat the run."
        ) from None
