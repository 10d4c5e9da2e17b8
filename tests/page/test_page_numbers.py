"""Numbers that a visitor types, and their losses."""

from __future__ import annotations

from typing import Any

import page_cases
import torch
from tolerances import LEARNED, approx


def type_numbers(page: Any, truth: str, said: str) -> None:
    page.locator("#typed-truth").fill(truth)
    page.locator("#typed-said").fill(said)


def row(page: Any, name: str) -> list[str]:
    """The cells of a row of the table of typed numbers; the last is the whole number."""
    return (
        page.locator("#typed-table tr", has=page.get_by_text(name, exact=True))
        .locator("td")
        .all_inner_texts()
    )


def test_typed_numbers_show_the_losses_of_each_token_and_of_the_number(page: Any) -> None:
    type_numbers(page, "405", "398")
    assert (row(page, "Truth"), row(page, "Off by")) == (["4", "0", "5", "405"], ["1", "9", "3", "7"])
    expected = page_cases.of_typed(["4", "0", "5"], ["3", "9", "8"], 0.9)["wasserstein"]
    *tokens, whole = map(float, row(page, "NTL-WAS"))
    assert [*tokens, whole] == approx(
        [*expected["tokens"], expected["whole"]], dtype=torch.float32, tolerance=LEARNED
    )
    assert page.locator("#typed-sure").get_attribute("aria-valuetext") == f"90 %, NTL-WAS {whole:.3f}"
    page.locator("#typed-all").click()
    assert page.locator("#typed-table tr.charge").count() == len(page_cases.LOSSES) + 1


def test_the_note_on_typed_numbers_explains_place_value_signs_and_length(page: Any) -> None:
    note = page.locator("#typed-note")
    assert "505 is 100 off" in note.inner_text()
    assert "does not know place value" in note.inner_text()
    type_numbers(page, "-5", "5")
    assert "The sign is a text token" in note.inner_text()
    assert row(page, "Truth")[0] == "−"
    page.get_by_role("button", name="4057 for 405").click()
    assert "number losses do not see it" in note.inner_text()
    assert row(page, "NTL-WAS")[-2] == "–"
    page.locator("#typed-padded").check()
    assert row(page, "Truth")[:-1] == list("0405")
    assert float(row(page, "NTL-WAS")[0]) > 3


def test_what_is_not_a_number_is_refused_and_the_old_answer_dimmed(page: Any) -> None:
    field, result = page.locator("#typed-said"), page.locator("#typed-result")
    for text, reason in (
        ("4,5", "Write a point"),
        ("four", "“four” is not a number"),
        ("1234567", "At most 6 digits"),
    ):
        field.fill(text)
        assert page.locator("#typed-note").inner_text().startswith(reason)
        assert field.get_attribute("aria-invalid") == "true"
        assert "stale" in result.get_attribute("class")
    field.fill("398")
    assert field.get_attribute("aria-invalid") == "false"
    assert "stale" not in result.get_attribute("class")


def test_typed_numbers_are_in_the_address(page: Any) -> None:
    type_numbers(page, "3.14", "3.2")
    link = page.evaluate("location.href")
    type_numbers(page, "7", "8")
    page.goto("about:blank")
    page.goto(link)
    assert page.locator("#typed-truth").input_value() == "3.14"
    assert row(page, "Model says")[-1] == "3.2"
