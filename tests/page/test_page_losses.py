"""The first screen and the section on losses say what their figures show."""

import math

import pytest
import torch
from test_page_cases import LOSSES, of_loss

import ntloss
from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria import make_criterion

SCREENS = ((390, 844), (1280, 900))


def costs(page):
    """What stays in view: names and values."""
    return dict(zip(*(page.locator(f"#costs {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))


def cost(page, name):
    return page.locator(f'[data-loss="{name}"]').text_content()


def caption(page):
    return page.locator("#caption").inner_text()


def preset(page, name):
    page.get_by_role("button", name=name, exact=True).click()


# The first screen


@pytest.mark.parametrize("size", SCREENS, ids=str)
def test_the_first_screen_has_figure_result_and_next_steps(open_page, size):
    page = open_page(viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce")
    for part in ("#hero", "#result", ".actions", ".links"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= size[1]
    assert page.locator(".actions a").all_inner_texts() == ["Install", "Evidence", "Paper"]


def test_the_first_figure_shows_what_the_library_charges(page):
    shown = {}
    looks_at = {"cross_entropy": ".of-entropy", "ntl_was": ".of-distance", "hl_gauss": ".of-target"}
    titles = ("Cross-entropy", "NTL-WAS", "HL-Gauss")
    for name, title in zip(looks_at, titles, strict=True):
        page.locator("#hero-loss .pill", has_text=title).click()
        for other, part in looks_at.items():  # what the other losses look at is hidden
            opacity = page.locator(part).first.evaluate("(e) => getComputedStyle(e).opacity")
            assert opacity == ("1" if other == name else "0")
        shown[name] = page.locator(".said .cost strong").all_inner_texts()
    assert shown["cross_entropy"] == ["4.5", "4.5"]
    labels = [float(digit == 4) for digit in range(10)]
    target = first_target_of_40(sigma=2.0)
    for i, said in enumerate((3, 9)):
        logits = page.evaluate(f"lossState.PRESETS[{i}].state.logits")
        assert round(math.exp(logits[said]), 2) == 0.9
        for name in ("cross_entropy", "ntl_was"):
            assert f"{of_loss(name, logits, labels)['loss']:.1f}" == shown[name][i]
        log_probs = torch.tensor(logits).log_softmax(-1)[:10]
        assert f"{-(target * log_probs).sum().item():.1f}" == shown["hl_gauss"][i]
    least = torch.special.entr(target.clamp(min=0)).sum()  # charged for just the targets
    assert f"{least:.1f} at least" in page.locator("#hero-note").inner_text()


def first_target_of_40(sigma):
    """The library's target of the first digit: what a digit costs is linear in its log-probability."""
    digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=10)
    logits = torch.zeros(1, 2, 10, requires_grad=True)
    NTLCrossEntropyLoss(digits, HLGauss(sigma))(logits, torch.tensor([[4, 0]])).backward()
    return 0.1 - 2 * logits.grad[0, 0]  # the gradient of a mean over two digits is (p - q) / 2


# Captions


def test_the_trained_loss_is_the_one_of_the_arrows(page):
    page.locator("#loss-table .loss-row", has_text="NTL-WAS").first.click()
    shown = costs(page)
    parts = float(shown["Cross-entropy"]) + 0.3 * float(shown["NTL-WAS"])
    assert abs(float(shown["Trained: CE + 0.3 × NTL-WAS"]) - parts) < 0.001
    page.locator("#objective .pill", has_text="alone").click()
    assert costs(page)["Trained: NTL-WAS"] == cost(page, "ntl_was")
    page.locator("#objective .pill", has_text="λ").click()
    page.locator("#lambda").fill("1.5")
    parts = float(shown["Cross-entropy"]) + 1.5 * float(shown["NTL-WAS"])
    assert abs(float(costs(page)["Trained: CE + 1.5 × NTL-WAS"]) - parts) < 0.001


def test_hl_gauss_takes_the_place_of_cross_entropy_and_has_a_slider_for_sigma(page):
    page.locator(".loss-row", has_text="HL-Gauss").click()
    assert costs(page)["Trained: HL-Gauss"] == cost(page, "hl_gauss")
    assert page.locator("#lambda").is_disabled()
    page.locator("#sigma").fill("5")
    logits, labels = page.evaluate("[lossState.get().logits, lossState.labels()]")
    found = of_loss("hl_gauss", logits, labels, sigma=3.2)["loss"]
    assert cost(page, "hl_gauss") == f"{found:.3f}"
    assert page.locator(".chosen code").inner_text() == "criterion=HLGauss(3.2)"


# The table


def test_five_losses_come_first_and_ten_are_folded(page):
    unfold = page.locator("#unfold")
    assert page.locator(".loss-row:visible").count() == 5
    assert (unfold.get_attribute("aria-expanded"), unfold.inner_text()) == ("false", "10 more losses")
    unfold.click()
    assert page.locator(".loss-row:visible").count() == 15
    assert unfold.get_attribute("aria-expanded") == "true"


def test_a_row_explains_itself_and_its_criterion_can_be_copied(open_page):
    page = open_page(reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"])
    page.locator("#unfold").click()
    for name, given in LOSSES.items():
        page.locator(f'#loss-table input[value="{name}"]').check()
        chosen = page.locator(".loss.chosen")
        assert len(chosen.locator(".loss-more p").first.inner_text()) > 20
        if given is None:
            continue
        chosen.get_by_role("button", name="Copy").click()
        page.wait_for_function("document.querySelector('.chosen .code-line button').textContent === 'Copied'")
        line = page.evaluate("navigator.clipboard.readText()")
        made = make_criterion(eval(f"dict({line})", {"HLGauss": ntloss.HLGauss})["criterion"])
        assert repr(made) == repr(make_criterion({"name": given[0], **given[1]}))
