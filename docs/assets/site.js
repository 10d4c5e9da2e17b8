// Tables that scroll sideways can be reached and scrolled with the keyboard. The theme wraps them after loading.
addEventListener("load", () =>
  setTimeout(() => {
    for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
      wrap.tabIndex = 0;
      wrap.setAttribute("role", "region");
      wrap.setAttribute("aria-label", "Table");
    }
  })
);
