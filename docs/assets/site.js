// Tables and formulas that scroll sideways can be reached with the keyboard. The theme wraps tables after loading.
addEventListener("load", () =>
  setTimeout(() => {
    for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
      wrap.tabIndex = 0;
      wrap.setAttribute("role", "region");
      wrap.setAttribute("aria-label", "Table");
    }
    for (const formula of document.querySelectorAll(".formula")) {
      if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;
    }
  })
);
