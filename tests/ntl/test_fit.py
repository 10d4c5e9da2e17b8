"""`ntl fit` and `ntl.fit`, with a tiny model in place of SmolLM2."""

import io
import logging
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import hydra
import numpy as np
import pandas as pd
import pytest
import torch
from approach_cases import make, save_pretrained
from hydra.core.global_hydra import GlobalHydra
from safetensors.torch import load_file
from tolerances import ONE_COMPUTATION, TRAINED_BY_ADAM, approx, assert_close

import ntl
from ntl import train
from ntl.cli import main
from ntl.config import compose_config
from ntl.data.tasks.tabular import with_targets, write_questions
from ntl.errors import UserError
from ntl.training.outline import is_long_tailed
from ntl.training.run_folder import RunFolder
from ntl.training.trainer import ApproachTrainer

SMALL = {
    "training_args.min_steps": 4,
    "training_args.num_train_epochs": 0.1,
    "training_args.per_device_train_batch_size": 4,
    "training_args.use_cpu": True,
    "weights.trained_layers": 1,
    "dataset_args.cache_dir": "cache",
}
NOTES = ["a fine\nhouse", 'with "quotes", and commas', None, "Ærø", "{braces}"]


@pytest.fixture(autouse=True)
def llama(tmp_path, monkeypatch):
    """Save a tiny pretrained Llama in the working directory, an empty one."""
    monkeypatch.chdir(tmp_path)
    save_pretrained("llama")


@pytest.fixture
def table():
    """Write a table of 150 rows with texts, categories, dates and gaps, whose target has a long tail."""
    rows = range(150)
    columns = {
        "when": [f"2026-{1 + i % 12:02}-{1 + i % 28:02}" for i in rows],
        "kind": [("flat", "house", None)[i % 3] for i in rows],
        "note": [NOTES[i % 5] for i in rows],
        "size": [None if i % 7 == 0 else 20.5 + i for i in rows],
        "price": [round(100 * 1.03**i) for i in rows],
    }
    pd.DataFrame(columns).to_csv("houses.csv", index=False)
    return pd.DataFrame(columns)


def fit(capsys, *words, **keys):
    capsys.readouterr()
    given = {**SMALL, **keys}
    code = main(["fit", *words, "model=llama", *(f"{key}={value}" for key, value in given.items())])
    printed = capsys.readouterr()
    return code, printed.out, " ".join(printed.err.split())


def evaluate(run, file, **keys):
    """Evaluate a run on a table, into the folder of the run's own evaluation unless it is named."""
    given = {
        "model_args": "pretrained",
        "model_args.model_name_or_path": run,
        "training_args": "eval",
        "training_args.use_cpu": True,
        "dataset_args": "tabular",
        "dataset_args.file": file,
        "dataset_args.names": True,
        "dataset_args.validation_size": 20,
        "dataset_args.test_size": 20,
        **keys,
    }
    return train.main([f"{key}={value}" for key, value in given.items()])


def test_a_table_gives_a_model_its_errors_and_the_command_that_predicts(table, capsys):
    code, out, err = fit(capsys, "houses.csv", "target=price")
    assert code == 0, err
    block = dict(re.findall(r"^(\w+) +(.*)$", out.partition("step 1:")[0], re.MULTILINE))
    assert block["loss"].startswith("HL-Gauss in place of cross-entropy at numbers, sigma ")
    assert block["rows"] == "110 for training, 20 validation, 20 test"
    assert block["weights"].startswith("the upper 1 layers of llama: ")
    assert block["steps"] == "4 of 4 rows, learning rate 0.002 (linear)"
    assert block["numbers"].startswith("4 digits; the answers have a long tail")
    assert re.search(r"when: 2026-\d\d-\d\d, kind: \w+, note: .*, size: [\w.]+, price: ' -> '\d{4}'", out)
    assert block["time"].startswith("about ")
    reported = re.search(
        r"^test MAE: median (\S+) · greedy \S+ · constant (\S+) · 90 % interval covers", out, re.M
    )
    assert reported is not None, out
    (command,) = re.findall(r"^To predict: ntl (.*)$", out, re.MULTILINE)
    table.drop(columns="price").head(3).to_csv("new.csv", index=False)
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr()
    assert "at each end" in printed.err  # calibrated by default
    found = pd.read_csv(io.StringIO(printed.out))
    assert [*found][-5:] == ["greedy", "median", "lower", "upper", "number_probability"]
    assert (found[["lower", "upper"]].to_numpy() % 1 == 0).all()
    report = ntl.load("outputs/houses-price").report
    assert f"{report.loc['test', 'median']:,.0f}" == reported[1]
    code, out, _ = fit(capsys, "houses.csv", "target=price")
    assert (code, "is finished already" in out) == (0, True)


@pytest.mark.parametrize("width", [100.0, 10_000.0])
def test_a_run_ends_with_the_coverage_of_its_own_and_of_calibrated_intervals(
    table, capsys, monkeypatch, width
):
    def read(self, model, questions, evaluation, levels):
        values = torch.tensor([2000 + width * (level - 0.5) for level in levels], dtype=torch.float64)
        return ["2000"] * len(questions), SimpleNamespace(
            values=values.expand(len(questions), -1), starts=torch.ones(len(questions))
        )

    monkeypatch.setattr("ntl.approaches.decoder_only.DecoderOnly.read", read)
    code, out, err = fit(capsys, "houses.csv", "target=price")
    assert code == 0, err
    run = RunFolder("outputs/houses-price")
    own, calibrated = re.findall(r"^test.*90 % interval covers (\d+) %", out, re.MULTILINE)
    held = pd.DataFrame(run.evaluation("test").predictions("test"))
    model, questions, ends = ntl.load(run.path), held["question"].tolist(), ["lower", "upper"]
    assert model.predict(questions, calibrate=False)[ends].to_numpy() == approx(held[ends].to_numpy())
    with pytest.warns(UserWarning, match="20 validation rows"):  # too few for this level
        found = model.predict(questions, level=0.99)[ends].to_numpy()
    assert found == approx(model.predict(questions, level=0.99, calibrate=False)[ends].to_numpy())
    rows = held.drop(columns=ends).join(model.predict(questions)[ends])
    for said, found in ((own, held), (calibrated, rows)):
        inside = (found["lower"] <= found["true"]) & (found["true"] <= found["upper"])
        assert said == f"{100 * inside.mean():.0f}"
    validation = pd.DataFrame(run.evaluation("test").predictions("validation"))
    inside = (validation["lower"] <= validation["true"]) & (validation["true"] <= validation["upper"])
    assert ("warning: " in out) == (inside.mean() < 0.8) == (width == 100.0)


def test_logarithms_are_learned_and_predictions_are_numbers_again(table, capsys):
    code, out, err = fit(capsys, "houses.csv", "target=price", "scale=log", "prompt={note}: it's ${size}\\n")
    assert code == 0, err
    assert "numbers  logarithms to base 10, 1 digits and 3 decimals" in out
    assert re.search(r"it.{1,2}s \$[\w.?]+\\n. -> '\d\.\d{3}'", out)
    model = ntl.load("outputs/houses-price")
    form = model.approach.answer_format
    assert form.read(form.write(["100", "8231", "57"])) == ["100", "8222", "57"]  # 10 ** 3.915
    assert not form.fits("0")
    found = model.predict(table.head(5), calibrate=False)
    assert (found["lower"] > 0).all()
    assert found["median"].dtype == "int64"
    lower, upper = form.outwards(np.array([0.0, 55.5]), np.array([1e12, 56.5]))
    assert [*lower, *upper] == approx([1.0, 55, 9977e6, 57])  # of 9.999, the largest logarithm


def test_a_run_on_another_scale_learns_other_labels_than_the_run_before(table, capsys):
    """Both scales write one digit and three decimals, so only the scale tells their labels apart."""
    table.assign(price=[f"{1 + i / 49:.3f}" for i in range(150)]).to_csv("houses.csv", index=False)
    assert fit(capsys, "houses.csv", "target=price", output="plain")[0] == 0
    assert fit(capsys, "houses.csv", "target=price", "scale=log", output="after")[0] == 0
    fresh = {"output": "alone", "dataset_args.cache_dir": "fresh"}
    assert fit(capsys, "houses.csv", "target=price", "scale=log", **fresh)[0] == 0
    after, alone = (load_file(f"{folder}/model.safetensors") for folder in ("after", "alone"))
    assert_close(after, alone, TRAINED_BY_ADAM)


def test_later_evaluations_change_neither_calibration_nor_report(table, capsys):
    def calibrated():
        model = ntl.load("outputs/houses-price")
        return model.report, model.predict(table.head(5), level=0.9, calibrate=True).to_numpy(float)

    assert fit(capsys, "houses.csv", "target=price")[0] == 0
    report, before = calibrated()
    assert report.loc["test", "rows"] == 20
    assert fit(capsys, "houses.csv", "target=price", "evaluation.interval=0.5")[0] == 0
    assert_close(calibrated()[1], before, ONE_COMPUTATION)
    table.assign(price=table["price"] % 7).to_csv("others.csv", index=False)
    readings = {"evaluation.beams": 1, "evaluation.read": "[greedy,median]"}
    assert evaluate("outputs/houses-price", "others.csv", **readings) == 0, capsys.readouterr().err
    report, after = calibrated()
    assert report.empty
    assert_close(after, before, ONE_COMPUTATION)
    assert fit(capsys, "houses.csv", "target=price")[0] == 0
    report, after = calibrated()
    assert report.loc["test", "rows"] == 20
    assert_close(after, before, ONE_COMPUTATION)


def test_dates_and_zip_codes_keep_their_digits():
    config = compose_config(["dataset_args.file=houses.csv", "dataset_args.target=y"], "fit")
    table = pd.DataFrame(
        {"date": ["20140502", "20140503"], "zip": ["98178", "98179"], "lat": ["47.5112", None]}
    )
    assert write_questions(table, with_targets(config.dataset_args), dict.fromkeys(table, "number")) == [
        "date: 20140502, zip: 98178, lat: 47.5112, y: ",
        "date: 20140503, zip: 98179, lat: unknown, y: ",
    ]


def test_decimals_beyond_three_digits_of_the_spread_are_rounded():
    approach = make("llama-tiny", family="decoder_only", number_format="padded", number_digits=3)
    answers = ["10.123456", "12.3", "-7.91234"]
    approach.fit(answers)
    assert approach.answer_format.write(answers) == ["+10.12", "+12.30", "-07.91"]  # a deviation of 8.94
    assert approach.answer_format.read(["+12.30"]) == ["12.3"]
    whole = make("llama-tiny", family="decoder_only", number_format="padded", number_digits=3)
    whole.fit(["1", "2", "3"])
    assert whole.answer_format.write(["2", "2.4"]) == ["2", "2"]
    powers = make("llama-tiny", family="decoder_only", number_format="padded", number_scale="log")
    powers.fit(["1", "10", "100"])
    assert powers.answer_format.read(powers.answer_format.write(["50"])) == ["50"]
    for options in ({"number_digits": 3}, {"number_scale": "log"}):
        constant = make("llama-tiny", family="decoder_only", number_format="padded", **options)
        with pytest.raises(UserError, match="expected answers that differ"):
            constant.fit(["5.5", "5.5"])


@pytest.mark.parametrize(("rows", "steps"), [(110, 80), (480, 90), (4800, 900)])
def test_three_epochs_are_trained_but_at_least_eighty_steps(rows, steps):
    arguments = SimpleNamespace(
        max_steps=-1, num_train_epochs=3.0, train_batch_size=16, gradient_accumulation_steps=1, world_size=1
    )
    config = SimpleNamespace(training_args=SimpleNamespace(min_steps=80))
    train._count_steps(config, arguments, rows)
    assert arguments.max_steps == steps


def test_long_tails_are_found():
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=500)
    assert is_long_tailed(np.exp(numbers))
    assert not is_long_tailed(50 + numbers)
    assert not is_long_tailed(np.exp(numbers) - 1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["houses.csv"],
            "no column to predict is given; expected target=COLUMN, one of when, kind, note, size",
        ),
        (["target=price"], "expected one table, given none"),
        (["houses.csv", "new.csv", "target=price"], "expected one table, given houses.csv and new.csv"),
        (["nowhere.csv", "target=price"], "nowhere.csv cannot be read"),
        (
            ["houses.csv", "target=prize"],
            "target=prize is unknown. Did you mean target=price?",
        ),
        (["houses.csv", "target=kind"], "'kind' is 'flat'; expected a finite number"),
        (["few.csv", "target=price"], "has 59 rows with a value of 'price'; expected at least 60"),
        (["zero.csv", "target=price", "scale=log"], "the answer 0 has no logarithm"),
        (["houses.csv", "target=price", "prompt={price}: "], "names the target 'price'"),
        (["houses.csv", "target=price", "training_args.max_step=3"], "Did you mean"),
        (["houses.csv", "target=price", "promt={size}"], "promt is unknown. Did you mean prompt"),
        (["houses.csv", "target=price", "prompt={siz}"], "names the column 'siz'; expected one of"),
        (["houses.csv", "target="], "target= is empty; expected target=COLUMN"),
        (["single.csv", "target=price"], "names no column beside the target"),
        (["houses.csv", "target=price", "model=a/b"], "is not a local folder, .* `make model`"),
    ],
)
def test_what_cannot_be_fitted_is_an_error_of_one_line(table, words, complaint, capsys, monkeypatch):
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    table.head(59).to_csv("few.csv", index=False)
    table.assign(price=0).to_csv("zero.csv", index=False)
    table[["price"]].to_csv("single.csv", index=False)
    given = [f"{key}={value}" for key, value in SMALL.items()]
    model = [] if any(word.startswith("model=") for word in words) else ["model=llama"]
    assert main(["fit", *words, *model, *given]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert re.search(complaint, err), err


@pytest.mark.parametrize(
    ("given", "target", "complaint"),
    [
        (lambda table: "nope.csv", "price", "nope.csv cannot be read"),
        (lambda table: table["price"], "price", "the table is a Series; expected a DataFrame or the path"),
        (lambda table: table, "pric", "Did you mean target=price"),
        (
            lambda table: table.set_axis([*range(5)], axis=1),
            5,
            "target=5 is unknown; expected one of: 0, 1, 2",
        ),
    ],
)
def test_what_python_cannot_fit_is_the_same_error(table, given, target, complaint):
    with pytest.raises(UserError, match=complaint):
        ntl.fit(given(table), target=target, model="llama", **SMALL)


def test_python_fits_a_data_frame_and_returns_what_it_has_fitted(table, capsys, monkeypatch):
    for logger in (logging.getLogger(), logging.getLogger("ntl")):  # as where nothing has set up logging
        monkeypatch.setattr(logger, "handlers", [])
    table = table.set_axis([*range(5)], axis=1)  # unnamed columns
    prompt = "${1}, {3}: "  # a price, and no interpolation
    model = ntl.fit(table, target=4, model="llama", prompt=prompt, **SMALL)
    assert "test MAE: median" in capsys.readouterr().out
    assert model.report.loc["test", "rows"] == 20
    answers = model.predict(table.head(2))
    again = ntl.fit(table, target=4, model="llama", prompt=prompt, **SMALL)
    assert "step" not in capsys.readouterr().out
    assert again.predict(table.head(2)).equals(answers)
    model.save("prices")
    assert ntl.load("prices").predict(table.head(2)).equals(answers)
    with pytest.raises(UserError, match="the keys cannot be used"):
        ntl.fit(table, target=4, model="llama", **{"weights.layers": 1})


def test_the_advice_for_several_targets_leads_to_a_run(table, capsys):
    words = ["dataset_args.target=[size,price]", "output=several"]
    steps = {
        "number_format=plain with model_args.number_digits=null.": "model_args.number_format=plain",
        "Pass model_args.number_digits=null, or model_args": "model_args.number_digits=null",
        "is not a number. Pass for example loss.options={sigma: 1.0}.": "loss.options={sigma: 1.0}",
        "or pass evaluation.read=[greedy].": "evaluation.read=[greedy]",
    }
    for advice, followed in steps.items():
        code, _, err = fit(capsys, "houses.csv", *words)
        assert (code, advice in err) == (2, True), err
        words.append(followed)
    assert fit(capsys, "houses.csv", *words)[0] == 0
    code, _, err = fit(capsys, "houses.csv", "target=price", "scale=log", "model_args.number_format=plain")
    assert (code, "model_args.number_scale=log is of padded answers" in err) == (2, True), err


def test_a_file_and_a_target_may_look_like_interpolations(table, capsys):
    table.rename(columns={"price": "${price}"}).to_csv("${houses}.csv", index=False)
    code, _, err = fit(capsys, "${houses}.csv", "target=${price}", output="run")
    assert code == 0, err
    assert "is finished already" in fit(capsys, "${houses}.csv", "target=${price}", output="run")[1]
    model = ntl.fit("${houses}.csv", "${price}", model="llama", output="run", **SMALL)
    assert model.data.target == ["${price}"]


def test_a_group_can_be_deleted_beside_the_table(table, capsys):
    given = {key: value for key, value in SMALL.items() if not key.startswith("weights.")}
    words = ["fit", "houses.csv", "target=price", "model=llama", "~weights"]
    assert main([*words, *(f"{key}={value}" for key, value in given.items())]) == 0, capsys.readouterr().err
    assert "weights" not in RunFolder("outputs/houses-price").record().config


def test_python_fits_inside_a_hydra_application(table, monkeypatch):
    fitted = []

    @hydra.main(config_path="pkg://ntl.conf", version_base="1.3")
    def application(_):
        fitted.append(ntl.fit(table, target="price", model="llama", **SMALL))
        assert GlobalHydra.instance().is_initialized()  # still the application's

    monkeypatch.setattr("sys.argv", ["application"])
    application()
    assert fitted[0].report.loc["test", "rows"] == 20


def test_a_regression_head_is_one_word(table, capsys):
    code, out, err = fit(capsys, "houses.csv", "target=price", "objective=head")
    assert (code, "error of a regression head" in out) == (0, True), err


def test_numbers_that_are_too_long_for_quantiles_are_learned_as_logarithms(table, capsys):
    table.assign(price=[f"{price}e28" for price in table["price"]]).to_csv("houses.csv", index=False)
    code, _, err = fit(capsys, "houses.csv", "target=price")
    assert (code, "in total. For long numbers, pass model_args.number_scale=log" in err) == (2, True), err
    code, _, err = fit(capsys, "houses.csv", "target=price", "scale=log")
    assert code == 0, err


def test_python_reads_and_writes_below_the_users_home(table, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("home").mkdir()
    Path("houses.csv").rename("home/houses.csv")
    model = ntl.fit("~/houses.csv", target="price", model="llama", output="~/run", **SMALL)
    assert model.name == str(tmp_path / "home/run")
    model.save("~/copy")
    assert ntl.load("~/copy").report.equals(model.report)
    with pytest.raises(UserError, match="a folder that does not exist"):
        model.save("~/copy")
    assert not Path("~").exists()


def test_in_python_none_means_not_given(table, monkeypatch):
    asked = []
    monkeypatch.setattr("ntl.fitting.run", lambda config, folder: asked.append((str(folder), config)))
    monkeypatch.setattr("ntl.predictor.load", str)
    none = {"output": None, "prompt": None, "scale": None, "training_args.output_dir": None}
    found = ntl.fit(table, target="price", model="llama", **none, **SMALL)
    assert found == ntl.fit(table, target="price", model="llama", **SMALL)
    ((folder, config), other) = asked
    assert (folder, config) == other
    assert re.fullmatch(r"outputs/price-[0-9a-f]{8}", folder)
    assert config.dataset_args.prompt is None


def test_a_cache_that_cannot_be_written_is_an_error(table):
    Path("outputs").write_text("")
    given = {key: value for key, value in SMALL.items() if "cache_dir" not in key}
    with pytest.raises(UserError, match=r"outputs/cache/tables cannot be written .* dataset_args\.cache_dir"):
        ntl.fit(table, target="price", model="llama", **given)


def test_an_interrupted_run_is_continued_only_if_something_is_saved(table, capsys, monkeypatch):
    def interrupt(*given):
        raise KeyboardInterrupt

    def advice(function, *words):
        with monkeypatch.context() as patch:
            patch.setattr(train, function, interrupt)
            return fit(capsys, "houses.csv", "target=price", *words)[2]

    assert "Nothing was saved yet" in advice("run_hydra")  # during imports
    assert "To continue from what is saved" in advice(
        "_leave_the_terminal_to_the_sweep", "-m", "output=sweep"
    )
    with monkeypatch.context() as patch:
        patch.setattr(ApproachTrainer, "_save_checkpoint", interrupt)
        code, _, err = fit(capsys, "houses.csv", "target=price")
        assert (code, "Nothing was saved yet" in err) == (130, True)
    save = ApproachTrainer._save_checkpoint

    def save_and_interrupt(self, *given):
        save(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ApproachTrainer, "_save_checkpoint", save_and_interrupt)
        code, _, err = fit(capsys, "houses.csv", "target=price")
        assert (code, "To continue from what is saved: ntl fit houses.csv target=price" in err) == (130, True)
    saved = RunFolder("outputs/houses-price").last_checkpoint()
    assert saved is not None
    code, out, _ = fit(capsys, "houses.csv", "target=price")
    assert (code, "step 1:" in out, "step 4:" in out) == (0, False, True)


def test_a_validation_set_that_training_has_answered_is_not_answered_again(table, capsys, monkeypatch):
    from ntl import evaluation

    asked = []
    evaluate = evaluation.evaluate
    monkeypatch.setattr(
        evaluation, "evaluate", lambda *given: asked.append(len(given[1])) or evaluate(*given)
    )
    code, _, err = fit(capsys, "houses.csv", "target=price", **{"training_args.eval_strategy": "steps"})
    assert (code, asked) == (0, [20, 20]), err
    assert len(RunFolder(Path("outputs/houses-price")).evaluation("test").predictions("validation")) == 20


def test_a_table_that_has_changed_is_not_split_anew(table, capsys):
    def changed(*words, **keys):
        code, _, err = fit(capsys, "houses.csv", "target=price", *words, **keys)
        return (code, "houses.csv has changed since the run in outputs/houses-price began" in err)

    run = RunFolder("outputs/houses-price")
    assert fit(capsys, "houses.csv", "target=price")[0] == 0
    table.sort_values("price", ascending=False).to_csv("houses.csv", index=False)
    assert changed() == changed("evaluation.name=again") == (2, True)
    run.update(status="running")
    assert changed() == (2, True)
    run.update(status="finished")
    rows = table.head(2)
    assert len(ntl.load(run.path).predict(rows, calibrate=True)) == 2  # its validation rows are answered
    for model in (run.path, run.last_checkpoint()):
        with pytest.raises(UserError, match=r"houses\.csv has changed since .* was trained"):
            ntl.load(model).predict(rows, level=0.5, calibrate=True)
    held = run.record().table
    run.update(table=None)  # a run of an older version
    assert len(ntl.load(run.path).predict(rows, level=0.5, calibrate=True)) == 2
    assert changed() == (0, False)
    run.update(table=held)
    Path("houses.csv").rename("others.csv")
    with pytest.raises(UserError, match=r"houses\.csv cannot be read"):  # it is gone
        ntl.load(run.path).predict(rows, level=0.5, calibrate=True)
    assert evaluate(run, "others.csv", **{"evaluation.name": "others"}) == 0, capsys.readouterr().err
    others = run.evaluation("others").record().table
    assert others not in (None, held)
    Path("others.csv").rename("houses.csv")
    assert changed("training_args.overwrite_output_dir=true") == (0, False)
    assert run.record().table == others
