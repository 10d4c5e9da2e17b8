"""The menu of the documentation site, with the theme's styles and the site's own."""

from pathlib import Path

import pytest
from test_page_design import CONTRAST, colors_of, contrast

MENU = """<style>{styles}</style>
<body data-md-color-scheme="{scheme}" data-md-color-primary="indigo" data-md-color-accent="indigo">
<nav class="md-nav md-nav--primary"><ul class="md-nav__list"><li class="md-nav__item md-nav__item--active">
<a class="md-nav__link md-nav__link--active" href="#"><span class="md-ellipsis">Which loss</span></a>"""


@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_the_active_entry_of_the_menu_has_enough_contrast(browser, scheme):
    theme = pytest.importorskip("zensical", reason="the site's generator is not installed")
    sheets = sorted(Path(theme.__file__).parent.glob("templates/assets/stylesheets/modern/*.css"))
    assert sheets
    own = Path(__file__).parents[2] / "docs/assets/site.css"
    page = browser.new_page()
    styles = "\n".join(sheet.read_text(encoding="utf-8") for sheet in (*sheets, own))
    page.set_content(MENU.format(styles=styles, scheme=scheme))
    text = page.locator(".md-ellipsis").evaluate("(e) => getComputedStyle(e).color")
    behind = page.locator("body").evaluate("(e) => getComputedStyle(e).backgroundColor")
    assert contrast(colors_of(text), colors_of(behind)) > CONTRAST
    page.close()
