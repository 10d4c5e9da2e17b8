/** The table of losses: five, and eleven folded; the chosen row explains itself. */
"use strict";

(() => {
  const { html, svg, byId, short, ofLogScale, toLogScale } = drawing;
  const NO_IDEA = new Array(11).fill(0);
  const [SLOT, HEIGHT] = [9, 22];

  /** A row: a native radio button with its small gradient and its cost, and what unfolds when it is chosen. */
  function makeRow({ name, title, about, criterionOf }) {
    const input = html("input", { type: "radio", name: "loss", value: name, autocomplete: "off" });
    const value = html("span", { class: "loss-value", "data-loss": name });
    const gradient = html("span", { class: "gradient" });
    const label = html("label", { class: "loss-row" }, input, html("span", { class: "loss-name" }, title), gradient, value);
    const more = html("div", { class: "loss-more" }, html("p", {}, about));
    const code = html("code", {});
    if (name === "hl_gauss") more.append(makeSlider());
    if (criterionOf()) more.append(html("p", { class: "code-line" }, code, address.copyText(() => code.textContent)));
    const row = html("div", { class: "loss" }, label, more);
    input.addEventListener("change", () => lossState.change({ loss: name }));
    return { row, input, value, gradient, more, code, criterionOf, name, title };
  }

  /** The slider for the sigma of HL-Gauss. */
  function makeSlider() {
    const slider = html("input", { id: "sigma", type: "range", min: "-10", max: "10", autocomplete: "off" });
    const value = html("output", { id: "sigma-value" });
    slider.addEventListener("input", () => lossState.change({ sigma: ofLogScale(Number(slider.value)) }, "sigma"));
    lossState.onChange(() => {
      const { sigma } = lossState.get();
      slider.value = String(toLogScale(sigma));
      slider.setAttribute("aria-valuetext", String(sigma));
      value.textContent = String(sigma);
    });
    return html("label", { for: "sigma", class: "slider" }, "σ, in the unit of the number ", value, slider);
  }

  /** Eleven small bars, up for tokens that a step pushes up. */
  function drawGradient(pushes, title) {
    const width = 11 * SLOT;
    const label = `${title} alone: ${captions.arrows(pushes)}`;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label });
    picture.append(svg("line", { x1: 0, x2: width, y1: HEIGHT / 2, y2: HEIGHT / 2, class: "zero" }));
    pushes.forEach((push, i) => {
      const height = (HEIGHT / 2 - 1) * Math.sqrt(Math.abs(push));
      const y = push > 0 ? HEIGHT / 2 - height : HEIGHT / 2;
      picture.append(svg("rect", { x: SLOT * i + 1.5, y, width: SLOT - 3, height, class: push > 0 ? "up" : "down" }));
    });
    return picture;
  }

  /** The tokens above the small gradients. */
  function drawHead() {
    const width = 11 * SLOT;
    const names = [...losses.VALUES.map(String), "T"].map((name, i) =>
      svg("text", { x: SLOT * (i + 0.5), y: 10, "text-anchor": "middle" }, name),
    );
    return svg("svg", { viewBox: `0 0 ${width} 14`, width, height: 14 }, ...names);
  }

  const first = LOSS_NAMES.first.map(makeRow);
  const folded = LOSS_NAMES.folded.map(makeRow);
  const rows = [...first, ...folded];

  function unfold(open) {
    byId("folded").hidden = !open;
    byId("unfold").setAttribute("aria-expanded", String(open));
    byId("unfold").textContent = open ? "Fewer losses" : `${folded.length} more losses`;
    draw();
  }

  /** Draw the rows that can be seen: while a bar is dragged, each one counts. */
  function draw() {
    const { loss, sigma } = lossState.get();
    const shown = byId("folded").hidden ? first : rows;
    shown.forEach(({ input, value, gradient, more, row, code, criterionOf, name, title }) => {
      const result = lossState.evaluate(name);
      value.textContent = short(result.loss);
      const pushes = lossState.pushes(result.gradient, lossState.evaluate(name, NO_IDEA).gradient);
      gradient.replaceChildren(drawGradient(pushes, title));
      input.checked = name === loss;
      more.hidden = !input.checked;
      code.textContent = criterionOf(sigma);
      row.classList.toggle("chosen", input.checked);
    });
  }

  let chosen;
  /** Unfold for a loss that is folded, when it is chosen by a link or by going back. */
  function update() {
    const before = chosen;
    chosen = lossState.get().loss;
    if (chosen !== before && folded.some(({ name }) => name === chosen)) unfold(true);
    else draw();
  }

  byId("loss-head").append(drawHead());
  byId("loss-table").prepend(...first.map(({ row }) => row));
  byId("folded").append(...folded.map(({ row }) => row));
  byId("unfold").addEventListener("click", () => unfold(byId("folded").hidden));
  unfold(false);
  lossState.onChange(update);
})();
