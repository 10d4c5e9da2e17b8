/** Targets on whole numbers: a Gaussian around a typed number, split over its digits. */
"use strict";

const targetsPage = (() => {
  const { svg, text, byId, show, linePath, tell, ofLogScale, toLogScale, onResize } = drawing;
  const DEFAULTS = { number: "39", sigma: 2 };
  const PLACES = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];
  const SMALLEST = 0.005; // shares below are neither drawn with a number nor named
  const [LINE, LEVEL, BARS, GAP] = [96, 122, 54, 28]; // heights: number line, level, its bars, space between levels
  const state = { ...DEFAULTS };
  const listeners = [];

  /** The typed number with its cells, targets, and the targets of digits that are smoothed alone. */
  function compute() {
    const number = numberLosses.parse(state.number);
    const value = Number(`${number.whole}.${number.decimals}`);
    const levels = wholeTargets.cellsOf(number).map((cells) => ({
      ...cells, target: wholeTargets.targetOf(cells, value, state.sigma), alone: losses.bellAround(cells.label),
    }));
    return { ...number, value, levels };
  }

  const plain = (number, { unit }) => number.toFixed(Math.round(-Math.log10(unit)));

  /** The number line: the Gaussian over the cells of the first digit, as wide as the bars below. */
  function drawLine({ value, levels: [first] }, width) {
    const { start, size, unit, label } = first;
    const [from, to] = [start - unit / 2, start + 10 * size - unit / 2];
    const [top, base] = [20, LINE - 22];
    const toX = (number) => (width * (number - from)) / (to - from);
    // More points than pixels would not be seen; the true number is always one of them.
    const points = Array.from({ length: 401 }, (_, i) => from + ((to - from) * i) / 400).concat(value).sort((a, b) => a - b);
    const heights = points.map((x) => [toX(x), base - (base - top) * Math.exp(-0.5 * ((x - value) / state.sigma) ** 2)]);
    const slot = width / 10;
    const ends = losses.VALUES.map((v) => [start + v * size, start + (v + 1) * size - unit].map((x) => plain(x, first)));
    const lows = ends.map(([low]) => low);
    const names = [ends.map(([low, high]) => (low === high ? low : `${low}–${high}`)), lows, lows.map((low) => String(Number(low)))];
    const letter = 0.47 * parseFloat(getComputedStyle(document.body).fontSize);
    const fitting = names.find((row) => row.every((name) => letter * (name.length + 1) < slot)) ?? [];
    const cells = losses.VALUES.flatMap((v) => [
      svg("rect", { x: v * slot, y: top, width: slot, height: base - top, class: v === label ? "cell right" : "cell" }),
      text((v + 0.5) * slot, base + 16, fitting[v] ?? "", { "text-anchor": "middle", class: "muted" }),
    ]);
    const anchor = toX(value) > 0.85 * width ? "end" : toX(value) < 0.15 * width ? "start" : "middle";
    return [
      ...cells,
      svg("path", { d: linePath([[toX(points[0]), base], ...heights, [toX(to), base]]), class: "area" }),
      svg("line", { x1: toX(value), x2: toX(value), y1: top - 4, y2: base, class: "mark truth" }),
      text(toX(value), 12, plain(value, first), { "text-anchor": anchor, class: "strong" }),
    ];
  }

  /** One digit: a bar for each value, and a dash where it would be if the digit were smoothed alone. */
  function drawLevel({ before, label, fits, target, alone }, i, width, scale) {
    const slot = width / 10;
    const base = 22 + BARS;
    const parts = [text(0, 12, titleOf(before, i), { class: "muted" })];
    losses.VALUES.forEach((v) => {
      const height = Math.max((BARS * target[v]) / scale, 1);
      const x = v * slot + 0.15 * slot;
      const dash = base - (BARS * alone[v]) / scale;
      const middle = { "text-anchor": "middle" };
      const share = !fits[v] ? "–" : target[v] >= SMALLEST ? (100 * target[v]).toFixed(0) : "";
      parts.push(
        svg("rect", { x, y: base - height, width: 0.7 * slot, height, class: v === label ? "block right" : "block" }),
        text((v + 0.5) * slot, base + 16, String(v), { ...middle, class: v === label ? "answer strong" : "" }),
        text((v + 0.5) * slot, base + 33, share, { ...middle, class: "muted share" }),
      );
      if (alone[v] >= SMALLEST) parts.push(svg("line", { x1: x - 2, x2: x + 0.7 * slot + 2, y1: dash, y2: dash, class: "alone" }));
    });
    return svg("g", { transform: `translate(0 ${LINE + i * (LEVEL + GAP)})`, class: "level" }, ...parts);
  }

  const titleOf = (before, i) => `${PLACES[i][0].toUpperCase()}${PLACES[i].slice(1)} digit${before && `, after ${before}`}`;

  /** From the cell of the true digit to the ten cells that it is split into. */
  function drawWedge({ label }, i, width) {
    const [top, bottom] = [LINE + i * (LEVEL + GAP) + LEVEL - 8, LINE + (i + 1) * (LEVEL + GAP) - 2];
    const slot = width / 10;
    const path = `M${label * slot} ${top} H${(label + 1) * slot} L${width} ${bottom} H0 Z`;
    return svg("path", { d: path, class: "wedge" });
  }

  /** The digits of a target with their shares, the largest three. */
  function sharesOf(target) {
    const shares = target.map((share, digit) => ({ share, digit })).filter(({ share }) => share >= SMALLEST);
    const words = shares.sort((a, b) => b.share - a.share).map(({ share, digit }) => `${(100 * share).toFixed(0)}\u00a0% on ${digit}`);
    if (words.length > 3) words.splice(3, words.length, "less on others");
    return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
  }

  function describe({ sign, value, levels: [first] }) {
    const [number, zeros] = [plain(value, first), plain(first.start + first.label * first.size, first)];
    const others = number === zeros ? "" : `, the same in ${zeros} as in ${number}`;
    return (
      `The first digits of the numbers around ${number} share its target: ${sharesOf(first.target)}. ` +
      `${LOSS_NAMES.titleOf("gaussian_smoothing")} (dashes) smooths each digit alone${others}.${sign ? " The sign is a token of its own." : ""}`
    );
  }

  function draw(found) {
    const { levels } = found;
    const scale = Math.max(...levels.flatMap(({ target, alone }) => [...target, ...alone]));
    const spoken = levels.map(({ before, target }, i) => `${titleOf(before, i)}: ${sharesOf(target)}`).join(". ");
    show(byId("number-targets"), LINE + levels.length * (LEVEL + GAP) - GAP, `Targets with σ ${state.sigma}. ${spoken}`, (width) => [
      ...drawLine(found, width),
      ...levels.slice(0, -1).map((level, i) => drawWedge(level, i, width)),
      ...levels.map((level, i) => drawLevel(level, i, width, scale)),
    ]);
    byId("number-targets-note").textContent = describe(found);
    byId("number-sigma").setAttribute("aria-valuetext", `${state.sigma}; first digit ${sharesOf(levels[0].target)}`);
  }

  /** Draw from the state; returns whether the text is a number. */
  function update() {
    byId("number-sigma").value = String(toLogScale(state.sigma));
    byId("number-sigma-value").textContent = String(state.sigma);
    const valid = tell("number", () => numberLosses.spell(state.number));
    byId("number-result").classList.toggle("stale", !valid);
    if (valid) draw(compute());
    return valid;
  }

  /** Change the state, show it and store it. */
  function change(changes, merge) {
    Object.assign(state, changes);
    if (update()) address.changed(merge);
    if ("sigma" in changes) listeners.forEach((listener) => listener());
  }

  byId("number").addEventListener("input", ({ target }) => change({ number: target.value.trim() }, "number"));
  byId("number-sigma").addEventListener("input", ({ target }) =>
    change({ sigma: ofLogScale(Number(target.value)) }, "number-sigma"),
  );
  address.part({
    write: () => ({
      number: state.number === DEFAULTS.number ? "" : state.number,
      number_sigma: state.sigma === DEFAULTS.sigma ? "" : String(state.sigma),
    }),
    read: ({ number = DEFAULTS.number, number_sigma = DEFAULTS.sigma }) => {
      numberLosses.parse(number);
      Object.assign(state, { number, sigma: address.numberOf(number_sigma, "number_sigma", 0.01, 1000) });
      byId("number").value = number;
      update();
      listeners.forEach((listener) => listener());
    },
  });
  byId("number").value = state.number;
  onResize(update);

  return { sigma: () => state.sigma, onChange: (listener) => listeners.push(listener) };
})();
