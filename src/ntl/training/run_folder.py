"""Read and write the files of a run's folder. No other module knows their format.

    run.json                    what is run, and how far it is (RunRecord)
    learning_curve.jsonl        one line per evaluation during training: step, eval_loss, eval_mae, ...
    error.txt                   why the last attempt failed, in a sweep
    <name>/evaluation.json      the record of what was evaluated, written last; <name> is evaluation.name
    <name>/metrics.json         test set -> metric -> value (null if undefined)
    <name>/predictions_*.jsonl  one line per question: question, answer, text, predicted, true (, lower, ...)

Files are written atomically: if a run is killed, each file holds either its old or its new content.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from omegaconf.errors import OmegaConfBaseException

from ntl.config import Config, Data, Tabular, read_config
from ntl.data.files import write_atomically, write_json
from ntl.errors import UserError, describe

VERSION = 2  # of run.json and evaluation.json
ERROR = "error.txt"  # says why a run of a sweep failed
CHECKPOINT = "checkpoint-"  # transformers' prefix of checkpoint folders
STATE = "trainer_state.json"  # transformers writes it last
# What the lab and transformers write into a run's folder, besides evaluations and what Hydra writes.
WRITTEN = (
    "run.json", "learning_curve.jsonl", f"{CHECKPOINT}[0-9]*", STATE, "training_args.bin", "config.json",
    "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "runs/*/events.out.tfevents.*",
)  # fmt: skip

Metrics = dict[str, float | None]
T = TypeVar("T")


@dataclass(frozen=True)
class RunRecord:
    """What is run. A file of an older version may lack keys, which then have their defaults.

    Args:
        label: Name in tables and figures (`T5 + NTL-WAS`).
        objective: The choice of the group `objective` or `loss` (`ntl_was`), by which contrasts name it.
        dataset: Name of the dataset.
        seed: Random seed of the run. Tables aggregate over seeds.
        job: Number of the run in its sweep.
        config: The whole composed configuration.
        status: `running`, `trained` or `finished`.
        steps, max_steps: Number of updates done, and in all.
        train_seconds: Training time in seconds, including earlier parts of a resumed run.
        parameters: Number of the model's parameters.
        versions: Maps each package to its version.
        questions: Maps each test set of an evaluation to the fingerprint of its questions.
        table: Hash of the table's file, see `hash_table`.
    """

    label: str = ""
    objective: str | None = None
    dataset: str = ""
    seed: int = 42
    job: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    status: str = "running"
    steps: int = 0
    max_steps: int = 0
    train_seconds: float = 0.0
    parameters: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    questions: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None


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
    """The files of one run, whose folder need not exist. Reading raises a UserError if a file is damaged."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.record_path = self.path / "run.json"
        self.curve_path = self.path / "learning_curve.jsonl"

    def __str__(self) -> str:
        return str(self.path)

    def holds_run(self) -> bool:
        """Return whether a run was started in this folder."""
        return self.record_path.exists()

    def record(self) -> RunRecord:
        """Read what is run."""
        return _read_record(self.record_path)

    def write(self, record: RunRecord, **changes: Any) -> RunRecord:
        """Write `run.json` with changes to a record, and return it."""
        record = replace(record, **changes)
        _write_record(self.record_path, record)
        return record

    def update(self, **changes: Any) -> RunRecord:
        """Change some values of `run.json`."""
        return self.write(self.record(), **changes)

    def clear(self) -> None:
        """Remove a run with its checkpoints and evaluations, and no other files that are in its folder."""
        for path in [path for name in WRITTEN for path in self.path.glob(name)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for path in [path.parent for path in self.path.glob("*/evaluation.json")]:
            EvaluationFolder(path).clear()
            if not any(path.iterdir()):
                path.rmdir()

    def evaluation(self, name: str) -> "EvaluationFolder":
        """Return the folder of an evaluation; it need not exist."""
        return EvaluationFolder(self.path / name)

    def last_checkpoint(self) -> Path | None:
        """Return the latest complete checkpoint, or None."""
        complete = {}
        for path in self.path.glob(f"{CHECKPOINT}*/{STATE}"):
            try:
                complete[int(json.loads(path.read_text(encoding="utf-8"))["global_step"])] = path.parent
            except (OSError, ValueError, LookupError, TypeError):
                continue  # training was killed while this file was written
        return complete[max(complete)] if complete else None

    def curve(self) -> list[dict[str, float | None]]:
        """Read the learning curve, sorted by step; empty if none was measured."""
        return _read(self.curve_path, _parse_lines) if self.curve_path.exists() else []

    def add_to_curve(self, point: Mapping[str, float | None]) -> None:
        """Add a point, `step` and finite metrics, to the learning curve; a resumed run repeats some."""
        before = [p for p in self.curve() if p["step"] < point["step"]]
        _write_lines(self.curve_path, [*before, point])


class EvaluationFolder:
    """The results of one evaluation of a model."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.record_path = self.path / "evaluation.json"
        self.metrics_path = self.path / "metrics.json"

    def __str__(self) -> str:
        return str(self.path)

    @property
    def run(self) -> RunFolder:
        """The folder around this one, which holds the run if the run evaluated itself."""
        return RunFolder(self.path.parent)

    def is_complete(self) -> bool:
        """Return whether all test sets were evaluated."""
        return self.record_path.exists() and self.metrics_path.exists()

    def clear(self) -> None:
        """Remove the results of an earlier evaluation."""
        self.path.mkdir(parents=True, exist_ok=True)
        for path in (self.record_path, self.metrics_path, *self.path.glob("predictions_*.jsonl")):
            path.unlink(missing_ok=True)

    def predictions_path(self, test: str) -> Path:
        """Return the path of `predictions_<test>.jsonl`; special characters are percent-encoded."""
        return self.path / f"predictions_{quote(test, safe='')}.jsonl"

    def write_results(
        self, test: str, metrics: Mapping[str, float | None], predictions: Sequence[Prediction]
    ) -> None:
        """Add the results of one test set: finite metrics or None, predictions in the test set's order."""
        _write_lines(self.predictions_path(test), (prediction.row() for prediction in predictions))
        write_json(self.metrics_path, {**self.metrics(), test: dict(metrics)})

    def finish(self, record: RunRecord) -> None:
        """Write `evaluation.json`, after all test sets are evaluated."""
        _write_record(self.record_path, replace(record, status="finished"))

    def record(self) -> RunRecord:
        """Read what was evaluated."""
        return _read_record(self.record_path)

    def metrics(self) -> dict[str, Metrics]:
        """Read the metrics by test set; empty before the first is evaluated."""
        return _read(self.metrics_path, _parse_metrics) if self.metrics_path.exists() else {}

    def predictions(self, test: str) -> list[Prediction]:
        """Read the predictions of one test set, in its order."""
        path = self.predictions_path(test)
        return _read(path, lambda text: [Prediction(**row) for row in _parse_lines(text)])


class Trained(NamedTuple):
    """A trained model: its configuration, whose model is that of the folder, and its record."""

    config: Config
    record: RunRecord


def read_trained(path: Path | str) -> Trained | None:
    """Read how the model of a run, or of one of its checkpoints, was trained; None if it is no run."""
    path = Path(path).expanduser()
    steps = path.name.removeprefix(CHECKPOINT) if path.name.startswith(CHECKPOINT) else ""
    folder = RunFolder(path.parent if steps else path)
    if not folder.holds_run():
        return None
    record = folder.record()
    # All that follows from training is in the folder.
    model = {**(record.config.get("model_args") or {}), "model_name_or_path": str(path)}
    model |= {"tokenizer_name_or_path": None, "config_overrides": {}}
    given = {**record.config, "model_args": model, "weights": {}}
    record = replace(record, steps=int(steps)) if steps.isdigit() else record
    try:
        return Trained(read_config(given, record.objective), record)
    except (UserError, OmegaConfBaseException) as error:
        raise UserError(
            f"{folder.record_path} has a configuration that cannot be read ({describe(error)}). Repeat "
            "the run."
        ) from None


def hash_table(data: Data) -> str | None:
    """Hash the file of a table; None for other datasets, for the sample, and for a file that is gone."""
    if not isinstance(data, Tabular) or data.file == "sample":
        return None
    try:
        return hashlib.sha256(Path(data.file).expanduser().read_bytes()).hexdigest()
    except OSError:
        return None  # loading the task says so


def check_table(data: Data, before: str | None, begun: str, advice: str) -> None:
    """Raise a UserError if a table has changed since a run, which recorded its hash, `begun`."""
    if isinstance(data, Tabular) and before and hash_table(data) not in (None, before):
        raise UserError(f"{data.file} has changed since {begun}; expected the same table. {advice}")


def find_unfinished(folder: Path) -> list[RunFolder]:
    """Find the runs in a folder that are not finished."""
    runs = [RunFolder(path.parent) for path in sorted(folder.rglob("run.json"))]
    return [run for run in runs if run.record().status != "finished"]


def find_evaluations(folders: Sequence[Path | str], name: str) -> list[EvaluationFolder]:
    """Find each complete evaluation of a name in folders, in their order and sorted by path within each."""
    found: dict[Path, EvaluationFolder] = {}
    for folder in map(Path, folders):
        if not folder.exists():
            raise UserError(f"{folder} does not exist; expected a folder that is or contains a run.")
        for path in sorted({*folder.rglob(f"{name}/evaluation.json"), *folder.glob("evaluation.json")}):
            inside = path.parent.parent.relative_to(folder).parts if path.parent != folder else ()
            if not any(part.startswith(CHECKPOINT) for part in inside):
                found.setdefault(path.parent.resolve(), EvaluationFolder(path.parent))
    return list(found.values())


def _write_record(path: Path, record: RunRecord) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"version": VERSION, **asdict(record)})


def _read_record(path: Path) -> RunRecord:
    content = _read(path, _parse_object)
    if content.get("version", 1) > VERSION:
        raise UserError(f"{path} has version {content['version']}; this version of ntl reads {VERSION}.")
    if "label" not in content:  # version 1
        content["label"] = content.pop("objective", "")
    known = {f.name for f in fields(RunRecord)}
    return RunRecord(**{key: value for key, value in content.items() if key in known})


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    write_atomically(path, "".join(lines))


def _parse_object(text: str) -> dict[str, Any]:
    return {**json.loads(text)}  # a TypeError if it is no object


def _parse_metrics(text: str) -> dict[str, Metrics]:
    return {test: {**metrics} for test, metrics in _parse_object(text).items()}


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
            "folder, or repeat the run with training_args.overwrite_output_dir=true."
        ) from None
