"""The page is small, stands alone, fits a phone, and can be read and operated by everybody."""

import re

import make_data
import pytest

PLAYGROUND = make_data.ROOT / "docs/playground"
PHONES = (390, 320)
SCHEMES = ("light", "dark")
# WCAG 2.2 AA: contrast of text, of large text, and the size of a target in pixels.
CONTRAST, CONTRAST_OF_LARGE_TEXT, TARGET = 4.5, 3.0, 24

# Text with its color and what is behind it, both as RGB with opacity resolved.
TEXTS = """() => {
    const rgba = (text) => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return { rgb: [r, g, b], a };
    };
    const over = (top, a, under) => top.map((c, i) => a * c + (1 - a) * under[i]);
    const backdrop = (element) => {
        if (!element) return [255, 255, 255];
        const style = getComputedStyle(element);
        const { rgb, a } = rgba(style.backgroundColor);
        return over(rgb, style.backgroundColor === "transparent" ? 0 : a, backdrop(element.parentElement));
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE);
        const words = own.map((child) => child.data.trim()).join("");
        if (!words || ["SCRIPT", "OPTION"].includes(element.tagName)) continue;
        if (!element.getClientRects().length) continue;
        const style = getComputedStyle(element);
        const drawn = element.namespaceURI.endsWith("svg");
        let behind = backdrop(element);
        const box = element.previousElementSibling;
        if (element.classList.contains("digit") && box?.tagName === "rect")
            behind = over(rgba(getComputedStyle(box).fill).rgb, 1, behind);
        const color = rgba(drawn ? style.fill : style.color);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        found.push({ words: words.slice(0, 40), color: over(color.rgb, color.a, behind), behind, large });
    }
    return found;
}"""

NAMED = "button, input, select, fieldset, [role=slider], [role=img], [role=radiogroup], [role=group]"
NAMELESS = """(named) => [...document.querySelectorAll(named)]
    .filter((e) => !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim()
        || [...(e.labels || [])].some((label) => label.textContent.trim())))
    .map((e) => e.outerHTML.slice(0, 100))"""

TARGETS = "button, .actions a, select, input[type=text], input[type=range], .pill, .handle, .loss-row"
SMALL_TARGETS = """([targets, least]) => [...document.querySelectorAll(targets)]
    .filter((e) => e.checkVisibility())
    .map((e) => [e.getBoundingClientRect(), e])
    .filter(([box]) => box.width < least || box.height < least)
    .map(([box, e]) => `${box.width} x ${box.height}: ${e.textContent}`)"""


FOCUSED = """(() => {
    const { id, name, className } = document.activeElement;
    return id || name || className;
})()"""


# Elements that scroll sideways, and that the keyboard cannot scroll.
UNREACHABLE = """[...document.querySelectorAll("body *")]
    .filter((e) => e.scrollWidth > e.clientWidth + 1)
    .filter((e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
    .filter((e) => e.tabIndex < 0 && !e.querySelector("[tabindex], a, button, input"))
    .map((e) => e.outerHTML.slice(0, 100))"""


def luminance(rgb):
    """Relative luminance as WCAG defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def show_everything(page):
    """States of the page that have colors of their own."""
    page.get_by_role("button", name="In doubt, honest").click()
    page.locator("#walk-next").click()
    page.locator("#walk-next").click()
    page.locator("#sentence").select_option(index=3)


def test_the_page_is_below_a_megabyte_and_needs_nothing_else():
    files = list(make_data.page_files())
    assert sum(path.stat().st_size for path in files) <= make_data.PAGE_BUDGET
    page = (PLAYGROUND / "index.html").read_text(encoding="utf-8")
    linked = re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"#]+)"', page)
    used = {name for name in linked if not name.startswith("data:")}
    assert used == {str(path.relative_to(PLAYGROUND)) for path in files} - {"index.html"}
    assert "type=module" not in page


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_has_enough_contrast(open_page, scheme):
    page = open_page(color_scheme=scheme, reduced_motion="reduce")
    show_everything(page)
    texts = page.evaluate(TEXTS)
    assert len(texts) > 200
    poor = [
        (each["words"], round(contrast(each["color"], each["behind"]), 2))
        for each in texts
        if contrast(each["color"], each["behind"]) < (CONTRAST_OF_LARGE_TEXT if each["large"] else CONTRAST)
    ]
    assert not poor


def test_the_page_follows_the_dark_and_light_schemes(open_page):
    def brightness(page):
        return luminance(colors_of(page.evaluate("getComputedStyle(document.body).backgroundColor")))

    light, dark = (open_page(color_scheme=scheme) for scheme in SCHEMES)
    assert brightness(dark) < 0.05
    assert brightness(light) > 0.8
    light.get_by_role("button", name="Dark theme").click()
    assert brightness(light) == brightness(dark)
    light.reload()
    assert brightness(light) == brightness(dark)
    light.get_by_role("button", name="Light theme").click()
    assert brightness(light) > 0.8


@pytest.mark.parametrize("width", PHONES)
def test_the_page_fits_a_phone(open_page, width):
    page = open_page(viewport={"width": width, "height": 844}, is_mobile=True, has_touch=True)
    show_everything(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert not page.evaluate(SMALL_TARGETS, [TARGETS, TARGET])
    assert not page.evaluate(UNREACHABLE)


def colors_of(text):
    return [float(c) for c in re.findall(r"[\d.]+", text)[:3]]


def test_without_scripts_the_page_says_what_is_missing_and_where_to_read_on(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((PLAYGROUND / "index.html").as_uri())
    note = page.locator(".noscript")
    assert note.is_visible()
    assert "needs JavaScript" in note.inner_text()
    assert not page.locator("main").is_visible()
    assert page.locator("noscript a").count() >= 2
    context.close()


def test_every_control_and_picture_has_a_name(page):
    assert page.evaluate(NAMELESS, NAMED) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    assert page.locator("th").count() > 20
    assert all(text.strip() for text in page.locator("th").all_inner_texts())


def test_the_keyboard_reaches_every_control_and_focus_is_visible(page):
    page.locator(
        '#loss-table input[value="ntl_was"]'
    ).check()  # λ and what is trained are those of a loss beside
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    reached = set()
    for _ in range(100):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
    assert {"theme", "pill", "bar", "target", "objective", "lambda", "train", "loss", "sweep-kind"} <= reached
    assert {"number", "number-sigma", "shape", "center", "spread", "walk-kind", "walk-next"} <= reached
    assert {"extra", "question", "tokenizer", "sentence"} <= reached
    page.locator("#walk-next").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
