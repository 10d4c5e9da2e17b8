"""The address holds the state of the page: links, the back button, and links that are not valid."""

import make_data
from test_page_losses import caption, costs, preset


def state(page):
    """Figures and controls."""
    return {
        "bars": [bar.get_attribute("aria-valuenow") for bar in page.locator(".bar").all()],
        "costs": costs(page),
        "caption": caption(page),
        "checked": page.evaluate(
            "[...document.querySelectorAll('#losses input:checked')].map((e) => e.value)"
        ),
        "sliders": [page.locator(f"#{name}").input_value() for name in ("lambda", "sigma")],
        "hero": page.locator("#hero-note").inner_text(),
    }


def change_everything(page):
    page.locator("#hero-loss .pill", has_text="Cross-entropy").click()
    page.locator('#target input[value="7"]').check()
    page.locator('#loss-table input[value="ntl_was"]').check()
    page.locator("#lambda").fill("0.7")
    page.locator(".loss-row", has_text="HL-Gauss").click()
    page.locator("#sigma").fill("-4")
    page.locator("#unfold").click()
    page.locator('#loss-table input[value="smmd"]').check()
    page.locator("#objective .pill", has_text="alone").click()
    page.locator('.bar[data-token="6"]').press("PageUp")


def test_a_copied_link_shows_the_same_page(open_page):
    page = open_page(reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"])
    change_everything(page)
    page.locator("#losses-tools button", has_text="Copy link").click()
    page.wait_for_function("document.querySelector('#losses-tools').textContent.includes('Copied')")
    link = page.evaluate("navigator.clipboard.readText()")
    other = open_page(reduced_motion="reduce")
    other.goto("about:blank")
    other.goto(link)
    assert state(other) == state(page)
    assert other.evaluate("scrollY") > 100


def test_the_back_button_restores_figures_and_controls_alike(page):
    states = [state(page)]
    for action in (
        lambda: preset(page, "Far: 9 for 4"),
        lambda: page.locator('#target input[value="2"]').check(),
        lambda: page.locator(".loss-row", has_text="CRPS").click(),
    ):
        action()
        states.append(state(page))
    after = page.evaluate("location.href")
    page.goto("about:blank")
    page.go_back()
    assert (page.evaluate("location.href"), state(page)) == (after, states[-1])
    for before in states[-2::-1]:
        url = page.evaluate("location.href")
        page.evaluate("history.back()")
        page.wait_for_function("before => location.href !== before", arg=url)
        assert state(page) == before


def test_an_invalid_link_shows_the_usual_page_and_says_why(page):
    usual = state(page)
    for text, reason in (
        ("bars=1,2", "not eleven percentages"),
        ("digit=12", "not one of 0 to 9"),
        ("loss=none", "no loss is called"),
        ("train=twice", "neither"),
        ("lambda=4", "“lambda=4” is not 0 to 3"),
        ("number_sigma=0", "is not 0.01 to 1000"),
        ("first=none", "has no loss"),
    ):
        page.goto("about:blank")
        page.goto(f"{(make_data.ROOT / 'docs/playground/index.html').as_uri()}#{text}")
        assert reason in page.locator("#address-note").inner_text()
        assert state(page) == usual
        assert "#" not in page.evaluate("location.href")
    page.locator("#address-close").click()
    assert page.locator("#address-note").is_hidden()
