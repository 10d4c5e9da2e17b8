"""Numbers that a visitor types, and their losses."""

import torch
from test_page_cases import LOSSES, of_targets, of_typed
from tolerances import LEARNED, approx


def type_numbers(page, truth, said):
    page.locator("#typed-truth").fill(truth)
    page.locator("#typed-said").fill(said)


def row(page, name):
    """The cells of a row of the table of typed numbers; the last is the whole number."""
    return (
        page.locator("#typed-table tr", has=page.get_by_text(name, exact=True))
        .locator("td")
        .all_inner_texts()
    )


def test_typed_numbers_show_the_losses_of_each_token_and_of_the_number(page):
    type_numbers(page, "405", "398")
    assert (row(page, "Truth"), row(page, "Off by")) == (["4", "0", "5", "405"], ["1", "9", "3", "7"])
    expected = of_typed(["4", "0", "5"], ["3", "9", "8"], 0.9)["ntl_was"]
    *tokens, whole = map(float, row(page, "NTL-WAS"))
    assert [*tokens, whole] == approx(
        [*expected["tokens"], expected["whole"]], dtype=torch.float32, tolerance=LEARNED
    )
    assert page.locator("#typed-sure").get_attribute("aria-valuetext") == f"90 %, NTL-WAS {whole:.3f}"
    page.locator("#typed-all").click()
    assert page.locator("#typed-table tr.charge").count() == len(LOSSES) + 1


def test_what_is_not_a_number_is_refused_and_the_old_answer_dimmed(page):
    field, result, says = (page.locator(f"#typed-{part}") for part in ("said", "result", "said-says"))
    for text, reason in (
        ("1,23,4", "Write 1,234.5"),
        ("four", "“four” is not a number"),
        ("1e6", "At most 6 digits"),
    ):
        field.fill(text)
        assert says.inner_text().startswith(reason)
        assert 0 < says.bounding_box()["y"] - field.bounding_box()["y"] < 60  # beside its input
        assert field.get_attribute("aria-invalid") == "true"
        assert "stale" in result.get_attribute("class")
    field.fill("1e5")
    assert says.inner_text() == "= 100000"
    assert row(page, "Model says")[-1] == "100000"
    assert field.get_attribute("aria-invalid") == "false"
    assert "stale" not in result.get_attribute("class")


def test_targets_on_whole_numbers_are_those_of_the_library(page):
    levels = page.locator("#number-targets .level")
    for number, step, sigma in (("39", 3, 2.0), ("39", 0, 1.0), ("405", 16, 40.0), ("1e3", 30, 1000.0)):
        page.locator("#number").fill(number)
        page.locator("#number-sigma").fill(str(step))
        digits = f"{float(number):.0f}"
        assert levels.count() == len(digits)
        for level, expected in zip(levels.all(), of_targets(digits, sigma), strict=True):
            shown = [float(share.strip("–") or 0) for share in level.locator(".share").all_text_contents()]
            assert max(abs(a - 100 * b) for a, b in zip(shown, expected, strict=True)) < 0.51
        assert f"HL-Gauss, σ\u00a0{sigma:.0f}" in page.locator("#typed-table").inner_text()
    page.locator("#number").fill("39")
    page.locator("#number-sigma").fill("3")
    note = page.locator("#number-targets-note")
    assert "share its target: 60\u00a0% on 3 and 40\u00a0% on 4" in note.inner_text()
    page.locator("#number").fill("forty")
    assert "“forty” is not a number" in page.locator("#number-says").inner_text()
    assert "stale" in page.locator("#number-result").get_attribute("class")
