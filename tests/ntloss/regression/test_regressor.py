"""`NumberRegressor` with a tiny model: scikit-learn's interface, intervals, saving, continuing."""

import copy
import importlib.util
import linecache
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from regression_cases import make, reviews, rooms, save_tiny_model
from sklearn.exceptions import NotFittedError
from tolerances import assert_close

from ntloss import HLGauss, criteria
from ntloss.regression import NumberRegressor, training
from ntloss.regression.calibration import calibrate
from ntloss.regression.questions import divide


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def fitted(tiny):
    return make(tiny, epochs=8).fit(*reviews(240))


def test_intervals_hold_their_share_of_new_answers(fitted):
    texts, answers = reviews(400, seed=1)
    for level in (0.9, 0.5):
        low, high = fitted.predict_interval(texts, level).T
        covered = ((low <= answers) & (answers <= high)).mean()
        # 40 held-out rows calibrate them: about two standard deviations.
        assert abs(covered - level) < 0.16, level


def test_quantiles_ascend_around_the_median_for_any_rows_and_levels_between_0_and_1(fitted):
    texts, _ = reviews(20, seed=2)
    quantiles = fitted.predict_quantiles((text for text in texts), [0.1, 0.25, 0.5, 0.75, 0.9])
    assert (np.diff(quantiles) >= 0).all()
    assert_close(quantiles[:, 2], fitted.predict(texts))
    assert_close(fitted.predict_quantiles(texts, [0.9, 0.1]), quantiles[:, [4, 0]])
    assert (np.diff(fitted.predict_distribution(texts, 9)) >= 0).all()
    assert fitted.predict_distribution([], 5).shape == (0, 5)
    with pytest.raises(ValueError, match="level"):
        fitted.predict_interval(["good"], 90)
    with pytest.raises(ValueError, match="quantiles"):
        fitted.predict_quantiles(["good"], [0.5, 1])


def test_saved_loaded_and_copied_it_predicts_and_draws_the_same(tiny, fitted, tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="pretrained"):
        fitted.save(Path(tiny) / ".." / Path(tiny).name)
    for _ in range(2):
        fitted.save(tmp_path / "saved")
    texts, answers = reviews(10, seed=4)
    for model in (NumberRegressor.load(tmp_path / "saved"), pickle.loads(pickle.dumps(fitted))):
        assert_close(model.predict_interval(texts), fitted.predict_interval(texts))
        assert model.report_.equals(fitted.report_)
        assert model.get_params()["epochs"] == 8
        points = model.plot(texts, answers).collections[-1].get_offsets()
        assert_close(np.array(points), np.column_stack([answers, fitted.predict(texts)]))
    with pytest.raises(FileNotFoundError, match=tmp_path.name):
        NumberRegressor.load(tmp_path)


@pytest.mark.parametrize("shift", [0, -60])
def test_calibration_reads_the_distribution_of_the_walks(tiny, fitted, shift):
    texts, answers = reviews(12, seed=3)
    if shift:  # answers with a sign
        known, numbers = reviews(240)
        fitted, answers = make(tiny, epochs=2).fit(known, numbers + shift), answers + shift
    writer = fitted.writer_
    prompts = writer.prompts(fitted.questions_.write(texts))
    calibration = calibrate(writer, writer.encode(prompts, fitted.format_.write(answers)))
    read = writer.quantiles(prompts, [(i + 0.5) / 200 for i in range(200)])
    assert abs((read < answers[:, None]).mean(1) - calibration.below.numpy()).max() <= 0.005
    assert abs((read <= answers[:, None]).mean(1) - calibration.upto.numpy()).max() <= 0.005


@pytest.mark.parametrize(
    "options", [{}, {"scale": "log"}, {"train": "all"}, {"train": "lora"}, {"loss": HLGauss(sigma=3.0)}]
)
def test_signed_decimals_logarithms_and_all_ways_to_train(tiny, options):
    texts, answers = reviews(60)
    answers = answers + 1 if "scale" in options else (answers - 20) / 8
    model = make(tiny, **options).fit(texts, answers)
    assert np.isfinite(model.predict_interval(texts[:5], 0.5)).all()
    if not options:
        assert (model.format_.numbers.signed, model.format_.numbers.decimals) == (True, 2)


def test_fit_is_repeatable_unless_random_state_is_none_and_leaves_global_random_numbers(tiny):
    texts, answers = reviews(40)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model = make(tiny)
    first = model.fit(texts, answers).predict(texts)
    assert torch.equal(torch.get_rng_state(), before)
    assert_close(model.fit(texts, answers).predict(texts), first)
    held_out = [make(tiny, epochs=1, random_state=None).fit(texts, answers).held_out_["answer"] for _ in "ab"]
    assert not held_out[0].equals(held_out[1])


def test_a_table_is_asked_with_its_names_and_without_useless_columns(tiny):
    table, prices = rooms()
    model = make(tiny, compare=True).fit(table, prices)
    assert set(model.questions_.left_out) == {"id", "country"}
    assert model.format_.write(model.predict(table)) == [f"{n:04.0f}" for n in model.predict(table)]
    question = model.questions_.write(table[:1])[0]
    assert question.startswith("kind: ")
    assert question.endswith("price: ")
    assert {*model.report_.index} == {
        "the median answer",
        "ridge on words",
        "boosted trees",
        "NumberRegressor",
    }
    assert list(model.report_["mae"]) == sorted(model.report_["mae"])
    assert list(model.feature_names_in_) == list(table.columns)
    rows = table.iloc[:4, ::-1].assign(more="anything")
    assert_close(model.predict(rows), model.predict(table[:4]))
    assert_close(model.predict(table.to_dict("records")[:4]), model.predict(table[:4]))
    with pytest.raises(ValueError, match="size"):
        model.predict(table.drop(columns="size"))
    with pytest.warns(UserWarning, match="'size'"):
        model.predict(table[:4].assign(size="about 30"))


def test_a_loss_is_saved_by_its_name_and_one_that_cannot_be_imported_loses_no_model(tiny, tmp_path):
    texts, answers = reviews(40)
    own = lambda probs, values, target: criteria.crps(probs, values, target)  # noqa: E731
    for loss in (criteria.crps, own):
        model = make(tiny, loss=loss, random_state=np.int64(3), batch_size=np.int64(8))
        expected = model.fit(texts, answers).predict(texts)
        model.save(tmp_path)
        loaded = NumberRegressor.load(tmp_path)
        assert_close(loaded.predict(texts), expected)
        if loss is own:
            with pytest.raises(ValueError, match="lambda"):
                loaded.fit(texts, answers)
            loaded.set_params(loss="crps")
        assert_close(loaded.fit(texts, answers).predict(texts), expected)


def test_a_refit_trains_on_the_rows_that_were_held_out_and_keeps_their_calibration(tiny):
    texts, answers = reviews(100)
    others = np.append(answers[:80], answers[80:][::-1])  # the last rows calibrate
    models = [
        make(tiny, shuffle=False, refit=refit).fit(texts, y)
        for refit in (False, True)
        for y in (answers, others)
    ]
    once, once_others, refitted, refitted_others = (m.predict_distribution(texts[:9], 9) for m in models)
    assert_close(once, once_others)
    assert abs(refitted - refitted_others).max() > 0.1
    for first, second in (models[::2], models[1::2]):
        assert_close(second.calibration_.below, first.calibration_.below)
        assert_close(second.history_, first.history_)
        assert second.report_["mae"].equals(first.report_["mae"])


def test_training_ends_after_four_epochs_without_a_smaller_error(tiny, monkeypatch):
    errors = iter([2.0, 1.0, 3.0, 3.0, 3.0, 3.0, 0.0])
    monkeypatch.setattr(NumberRegressor, "_error", lambda *_: next(errors))
    assert make(tiny, epochs=7).fit(*reviews(160)).history_ == [2.0, 1.0, 3.0, 3.0, 3.0, 3.0]


@pytest.fixture
def steps(monkeypatch):
    """The total and the number of each step of a training, and where one of them stops."""
    seen, stops = [], {}

    class Bar:
        def __init__(self, total, initial, **_):
            self.total, self.step = total, initial

        def set_postfix(self, **_):
            pass

        def update(self):
            self.step += 1
            seen.append((self.total, self.step))
            if seen[-1] in stops:
                raise stops.pop(seen[-1])

    monkeypatch.setattr(training, "tqdm", Bar)
    return seen, stops


@pytest.mark.parametrize(
    ("stop", "expected"),
    [(KeyboardInterrupt, [*range(1, 10)]), (MemoryError, [1, 2, *range(1, 6), *range(4, 10)])],
)
def test_a_stopped_fit_goes_on_from_its_step_or_its_last_epoch(tiny, tmp_path, steps, stop, expected):
    texts, answers = reviews(60)
    whole = make(tiny, epochs=3).fit(texts, answers)
    model, (seen, stops) = make(tiny, epochs=3, checkpoint=tmp_path), steps
    seen.clear()
    for step in (2, 5):  # within the first epoch, then within the second one
        stops[9, step] = stop
        with pytest.raises(stop):
            model.fit(texts, answers)
    model.fit(texts, answers)
    assert [step for _, step in seen] == expected
    assert_close(model.history_, whole.history_, 1e-3)
    assert_close(model.predict(texts), whole.predict(texts), 1e-3)


def test_a_fit_that_was_stopped_while_it_validated_makes_up_for_it(tiny, tmp_path, monkeypatch):
    texts, answers = reviews(160)
    whole = make(tiny, epochs=3).fit(texts, answers)
    model, measure, calls = make(tiny, epochs=3, checkpoint=tmp_path), NumberRegressor._error, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) in (1, 4):
            raise KeyboardInterrupt
        return measure(*given)

    monkeypatch.setattr(NumberRegressor, "_error", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            model.fit(texts, answers)
    model.fit(texts, answers)
    assert_close(model.history_, whole.history_, 1e-3)
    assert_close(model.predict(texts), whole.predict(texts), 1e-3)


def test_a_refit_takes_the_chosen_number_of_epochs_and_goes_on_after_an_interruption(tiny, tmp_path, steps):
    texts, answers = reviews(160)
    once = make(tiny, epochs=3).fit(texts, answers)
    epochs = 1 + int(np.argmin(once.history_))
    seen, stops = steps
    seen.clear()
    stops[10 * epochs, 2] = KeyboardInterrupt  # in the second training
    model = make(tiny, epochs=3, refit=True, checkpoint=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        model.fit(texts, answers)
    assert_close(model.predict_distribution(texts[:9], 9), once.predict_distribution(texts[:9], 9))
    model.fit(texts, answers)
    assert seen == [(21, i) for i in range(1, 22)] + [(10 * epochs, i) for i in range(1, 1 + 10 * epochs)]
    whole = make(tiny, epochs=3, refit=True).fit(texts, answers)
    assert_close(model.predict(texts[:9]), whole.predict(texts[:9]), 1e-3)


def test_a_checkpoint_is_continued_only_by_the_same_training(tmp_path, capsys):
    texts, answers = reviews(40)
    base = save_tiny_model(tmp_path / "base")

    def goes_on(answers=answers, **options):
        make(base, epochs=1, checkpoint=tmp_path / "kept", verbose=True, **options).fit(texts, answers)
        said = capsys.readouterr().out.splitlines()
        return [word for word in ("continued", "started anew") if any(line.startswith(word) for line in said)]

    def imported(source):  # as in a new process, each import makes another function
        (tmp_path / "own.py").write_text(f"def distance(probs, values, target):\n    return {source}\n")
        spec = importlib.util.spec_from_file_location("own", tmp_path / "own.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        linecache.clearcache()
        return module.distance

    assert goes_on() == []
    assert goes_on() == goes_on(refit=True) == ["continued"]
    assert goes_on(answers[::-1].copy()) == ["started anew"]
    square, absolute = "(probs @ values - values[target]).square()", "(probs @ values - values[target]).abs()"
    found = [goes_on(loss=imported(source)) for source in (square, square, absolute)]
    assert found == [["started anew"], ["continued"], ["started anew"]]
    save_tiny_model(tmp_path / "base", seed=1)
    assert goes_on(loss=imported(absolute)) == ["started anew"]
    (tmp_path / "kept/checkpoint.pt").write_bytes(b"PK")
    assert goes_on() == ["started anew"]


def test_too_few_rows_give_numbers_but_no_intervals(tiny):
    model = make(tiny).fit(*reviews(21))
    assert model.report_["width"].isna().all()
    assert np.isfinite(model.predict(["good"])).all()
    with pytest.raises(ValueError, match="quantile"):
        model.predict_interval(["good"], 0.9)


@pytest.mark.parametrize(
    ("error", "key", "change"),
    [
        (ValueError, "3 of 40 rows: nan in row 7,", lambda x, y: (x, [*y[:7], *[np.nan] * 3, *y[10:]])),
        (ValueError, "1 of 40 rows: four in row 7", lambda x, y: (x, [*y[:7], "four", *y[8:]])),
        (ValueError, "parse_number", lambda x, y: (x, [f"${number}" for number in y])),
        (TypeError, "datetime", lambda x, y: (x, pd.date_range("2024", periods=40))),
        (TypeError, "timedelta", lambda x, y: (x, pd.Series(pd.to_timedelta(y, "h"), dtype=object))),
        (ValueError, "y", lambda x, y: (x, y * 0)),
        (ValueError, "27 training rows", lambda x, y: (x, [0] * 39 + [5])),
        (ValueError, "y: ", lambda x, y: (x, y * 1e200)),
        (ValueError, "y: ", lambda x, y: (x, 1e15 + (y > 20) / 8)),
        (ValueError, "inconsistent", lambda x, y: (x[:10], y)),
        (ValueError, "X has 10 rows", lambda x, y: (x[:10], y[:10])),
        (ValueError, "0 rows in which something is given", lambda x, y: ([" "] * 40, y)),
        (ValueError, "columns", lambda x, y: (pd.DataFrame(index=range(40)), y)),
        (ValueError, "'a'", lambda x, y: (pd.DataFrame(zip(x, x, strict=True), columns=["a", "a"]), y)),
        (TypeError, "X", lambda x, y: ("one text", y)),
    ],
)
def test_rows_that_cannot_be_used_are_named(tiny, error, key, change):
    with pytest.raises(error, match=key):
        make(tiny).fit(*change(*reviews(40)))


@pytest.mark.parametrize(
    ("name", "value", "error", "named"),
    [
        ("train", "some", ValueError, "train"),
        ("interval", 90, ValueError, "interval"),
        ("epochs", 1.5, ValueError, "epochs"),
        ("batch_size", 0, ValueError, "batch_size"),
        ("max_rows", 3, ValueError, "max_rows"),
        ("scale", "square", ValueError, "scale"),
        ("random_state", "seed", ValueError, "random_state"),
        ("loss", "ntl", ValueError, "ntl"),
        ("model", "./nothing", OSError, "nothing"),
    ],
)
def test_parameters_that_cannot_be_used_are_named_and_leave_no_model(fitted, name, value, error, named):
    model = copy.copy(fitted).set_params(**{name: value})
    with pytest.raises(error, match=named):
        model.fit(*reviews(40))
    if named in ("ntl", "nothing", "scale"):
        with pytest.raises(NotFittedError):
            model.predict(["good"])


def test_the_last_rows_calibrate_and_with_many_rows_others_choose_the_epoch():
    used, parts = divide(100, 80, shuffle=False, seed=0)
    assert (list(used), parts) == ([*range(20, 100)], [slice(0, 54), slice(54, 54), slice(54, 80)])
    used, parts = divide(2000, 1000, shuffle=True, seed=0)
    assert parts == [slice(0, 750), slice(750, 833), slice(833, 1000)]
    assert len({*used}) == 1000


def test_rows_of_weight_0_are_as_if_their_answers_were_others(tiny):
    texts, answers = reviews(60)
    weights = np.arange(60) % 2
    others = np.where(weights, answers, answers[::-1])
    fits = [make(tiny, epochs=1).fit(texts, y, sample_weight=weights) for y in (answers, others)]
    fits += [
        make(tiny, epochs=1).fit(texts, answers),
        make(tiny, epochs=1).fit(texts, answers, np.full(60, 7.0)),
    ]
    read = [model.predict_distribution(texts[:5], 5) for model in fits]
    # Quantiles are multiples of 0.1, and rounding moves some of them by one.
    assert_close(read[0], read[1], 0.005)
    assert_close(read[2], read[3], 0.005)
    assert abs(read[0] - read[2]).max() > 1
    with pytest.raises(ValueError, match="sample_weight"):
        make(tiny).fit(texts, answers, sample_weight=weights[:5])
