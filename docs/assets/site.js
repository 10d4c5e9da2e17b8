// What the theme adds after loading gets names and can be reached with the keyboard.
(() => {
  // A table that scrolls sideways is no landmark: a page has many.
  const mend = () => {
    for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap:not([role])")) {
      wrap.tabIndex = 0;
      wrap.setAttribute("role", "group");
      wrap.setAttribute("aria-label", "Table");
    }
    for (const nav of document.querySelectorAll(".md-code__nav:not([role])")) nav.setAttribute("role", "presentation");
    for (const formula of document.querySelectorAll(".formula:not([tabindex])")) {
      if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;
    }
  };
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
  addEventListener("load", mend);
  // On a phone, the page's contents close when a heading is chosen.
  addEventListener("click", ({ target }) => {
    if (target.closest(".md-sidebar--secondary a")) {
      for (const toggle of document.querySelectorAll(".md-sidebar--secondary [type=checkbox]")) toggle.checked = false;
    }
  });
})();
