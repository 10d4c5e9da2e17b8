"""The address holds the state of the page: links, the back button, and links that are not valid."""

# A part with one number of its own, as each section has one with its settings.
PART = """() => {
    window.size = 1;
    address.part({
        write: () => ({ size: size === 1 ? "" : String(size) }),
        read: ({ size: text = "1" }) => {
            if (!/^\\d+$/.test(text)) throw new Error(`“${text}” is no size.`);
            size = Number(text);
        },
    });
}"""


def set_size(page, size, merge=""):
    page.evaluate(f"size = {size}; address.changed('{merge}')")


def go_back(page):
    before = page.evaluate("location.href")
    page.evaluate("history.back()")
    page.wait_for_function("before => location.href !== before", arg=before)
    return page.evaluate("size")


def test_the_back_button_restores_states_and_a_drag_is_one_of_them(page):
    page.evaluate(PART)
    set_size(page, 2)
    for size in (3, 4, 5):
        set_size(page, size, "drag")
    page.wait_for_url("**#size=5")  # after a pause of the drag
    assert go_back(page) == 2
    assert go_back(page) == 1
    assert "size" not in page.evaluate("location.hash")


def test_a_link_to_a_section_keeps_the_state(page):
    page.evaluate(PART)
    set_size(page, 7)
    page.locator("nav a", has_text="Whole numbers").click()
    page.wait_for_url("**#numbers&size=7")
    assert page.evaluate("document.getElementById('numbers').getBoundingClientRect().top") < 50


def test_a_link_holds_what_was_typed_and_chosen(page):
    page.locator(
        "#models"
    ).scroll_into_view_if_needed()  # a page that is left while it loads has a failed request
    page.wait_for_function("document.getElementById('model-cards').ariaBusy === 'false'")
    typed = {
        "#own-text": "1234567 or 42",
        "#typed-truth": "3.14",
        "#typed-said": "3.2",
        "#question": "20 30 40",
    }
    for field, text in typed.items():
        page.locator(field).fill(text)
    page.locator("#answer-text").select_option(index=2)
    page.wait_for_url("**text=3*")
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    found = {field: page.locator(field).input_value() for field in (*typed, "#answer-text")}
    assert found == {**typed, "#answer-text": "2"}


def test_an_invalid_link_changes_nothing_and_says_why(page):
    page.evaluate(PART)
    set_size(page, 2)
    for text, reason in (
        ("size=big", "“big” is no size"),
        ("width=2", "“width” is not a setting"),
        ("nowhere", "no part “nowhere”"),
        ("size=%E0%A4%A", "damaged"),
    ):
        page.evaluate("text => (location.hash = text)", text)
        page.wait_for_url("**#size=2")
        assert reason in page.locator("#address-note").inner_text()
        assert page.evaluate("size") == 2
    page.locator("#address-close").click()
    assert page.locator("#address-note").is_hidden()
