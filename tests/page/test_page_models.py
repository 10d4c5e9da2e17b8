"""The models of the page: they answer in a worker, as in Python, and do not block the page."""

import make_data
import pytest
import torch
from test_page_cases import of_model
from tolerances import LEARNED, approx

MODELS = make_data.read_constant("models")
BUSY = "document.getElementById('model-cards').ariaBusy !== 'false'"
NO_WORKERS = "delete window.Worker"
# The browser refuses the program only after the page has asked.
FAILING_WORKERS = "window.Blob = class extends Blob { constructor() { super(['throw new Error(1)']) } }"


def show_models(page):
    page.locator("#models").scroll_into_view_if_needed()
    wait_for_answer(page)


def wait_for_answer(page):
    page.wait_for_function(f"!({BUSY})")


def check_answers(page, question):
    """The cards show what the library reads out of the models."""
    for i, packed in enumerate(MODELS["models"]):
        expected = of_model(packed, question)
        card = page.locator("#model-cards .card").nth(i)
        greedy, median, mean, interval = card.locator("dd:not(.hint)").all_inner_texts()
        low, _, middle, _, high = expected["quantiles"]
        assert (float(greedy), float(median)) == (expected["greedy"], middle)
        assert interval == f"{low:.0f} to {high:.0f}"
        assert float(mean) == approx(expected["mean"], dtype=torch.float32, tolerance=LEARNED)


@pytest.mark.parametrize("script", ["", NO_WORKERS, FAILING_WORKERS], ids=["worker", "none", "failing"])
def test_models_answer_with_and_without_a_worker(open_page, script):
    page = open_page(script=script)
    assert page.locator("#models").get_attribute("data-computed-in") is None  # they start when they are near
    show_models(page)
    assert page.locator("#models").get_attribute("data-computed-in") == ("page" if script else "worker")
    check_answers(page, MODELS["task"]["example"])


def test_an_invalid_question_says_what_is_wrong_and_dims_the_old_answer(page):
    show_models(page)
    field, note, says = (page.locator(f"#question{part}") for part in ("", "-note", "-says"))
    for text, reason in (
        ("twelve 70", "“twelve” is not a whole number"),
        ("1000 1 1", "1000 has more than three digits"),
        ("12 70", "there are 2"),
    ):
        field.fill(text)
        assert reason in says.inner_text()
        assert field.get_attribute("aria-invalid") == "true"
        assert "stale" in page.locator("#model-cards").get_attribute("class")
    field.fill("7 5 120")
    assert field.get_attribute("aria-invalid") == "false"
    assert "new to them" in note.inner_text()
    wait_for_answer(page)
    assert "stale" not in page.locator("#model-cards").get_attribute("class")


def test_the_test_set_is_drawn_with_the_question_among_it(page):
    show_models(page)
    plots = page.locator("#test-plots svg")
    dots = plots.first.locator(".dots").get_attribute("d")
    assert dots.count("M") == len(MODELS["task"]["questions"]) == make_data.SHOWN
    page.locator("#test-reading .pill", has_text="median").click()
    assert page.locator("#test-plots strong").all_inner_texts() == [
        f"{model['off']['median']:.1f}" for model in MODELS["models"]
    ]
    errors = [
        f"{model['off'][name]:.1f}" for model in MODELS["models"] for name in ("greedy", "median", "mean")
    ]
    cells = page.locator("#model-table td").all_inner_texts()
    assert cells[:3] + cells[5:8] == errors  # of the same truth as the plots
    page.locator("#another").click()
    assert page.locator("#question").input_value() in MODELS["task"]["questions"]


def test_stored_answers_agree_with_their_distributions(page):
    answers = make_data.read_constant("answers")
    texts = (make_data.ROOT / "docs/playground/sentences.txt").read_text(encoding="utf-8").splitlines()
    assert [each["text"] for each in answers["sentences"]] == texts
    for each in answers["sentences"]:
        below = torch.tensor(each["probs"]).cumsum(0) / sum(each["probs"])
        found = [int((below < level).sum()) for level in (0.05, 0.5, 0.95)]
        assert all(
            abs(a - b) <= 1 for a, b in zip(found, (each["low"], each["median"], each["high"]), strict=True)
        )
    page.locator("#answer-text").select_option(index=3)
    shown = page.locator("#answer-readings dd:not(.hint)").all_inner_texts()
    assert shown[:2] == [str(answers["sentences"][3][name]) for name in ("greedy", "median")]
    assert "stored" in page.locator("#answer-about").inner_text()
