/** Whole numbers: a distribution over three digits, its readings, the walk to a quantile, and a digit too many. */
"use strict";

(() => {
  const { html, svg, text, byId, show, radios, fillTable, fillReadings, percent, onResize } = drawing;
  const SHAPES = {
    bell: (x, center, spread) => Math.exp(-0.5 * ((x - center) / spread) ** 2),
    skewed: (x, center, spread) =>
      Math.exp(-0.5 * ((x - center) / (x < center ? spread * 0.4 : spread * 2.2)) ** 2),
    camps: (x, center, spread) =>
      0.45 * Math.exp(-0.5 * ((x - center + 160) / (0.6 * spread)) ** 2) +
      0.55 * Math.exp(-0.5 * ((x - center - 60) / (1.4 * spread)) ** 2) / 1.4,
  };
  const WALKS = { low: ["the 5 % quantile", 0.05], median: ["the median", 0.5], high: ["the 95 % quantile", 0.95] };
  const DEFAULTS = { shape: "camps", center: 405, spread: 40, kind: "median", steps: 1, extra: 0.02 };
  const state = { ...DEFAULTS, probs: [] };

  function makeProbs() {
    const weight = SHAPES[state.shape];
    state.probs = readings.normalize(
      Array.from({ length: readings.NUMBERS }, (_, x) => weight(x, state.center, state.spread) + 1e-9),
    );
  }

  // The distribution.

  function updateChart() {
    const read = readings.readAll(state.probs);
    const found = walkDigits().slice(0, state.steps);
    const size = 10 ** (3 - found.length);
    const start = readings.toNumber(found) * size;
    numberChart.draw(byId("number-chart"), state.probs, {
      label: `Distribution over 0 to 999; greedy ${read.greedy}, median ${read.median}, mean ${Math.round(read.mean)}`,
      lines: [["greedy", read.greedy, "greedy"], ["median", read.median, "median"], ["mean", read.mean, "mean"]],
      band: [read.low, read.high],
      range: [start, start + size - 1],
    });
    const error = (number) => `expected error ${readings.expectedError(state.probs, number).toFixed(1)}`;
    const facts = [
      ["Greedy", read.greedy, error(read.greedy)],
      ["Median", read.median, error(read.median)],
      ["Mean", read.mean.toFixed(1), error(read.mean)],
      ["90 % interval", `${read.low} to ${read.high}`, "shaded above"],
    ];
    fillReadings(byId("number-readings"), facts);
  }

  // The walk.

  /** Steps of what is followed; for greedy decoding without quantiles. */
  function walkSteps() {
    if (state.kind !== "greedy") return readings.quantileWalk(state.probs, WALKS[state.kind][1]);
    const digits = readings.greedyDigits(state.probs);
    return digits.map((digit, i) => {
      const probs = readings.nextDigit(state.probs, digits.slice(0, i));
      const before = probs.slice(0, digit).reduce((a, b) => a + b, 0);
      return { digit, before, share: probs[digit], probs };
    });
  }

  const walkDigits = () => walkSteps().map((step) => step.digit);

  /** One level: a bar split by the next digit, with a marker at what remains of the quantile. */
  function drawLevel(step, y, width, prefix) {
    let start = 0;
    const parts = step.probs.flatMap((share, digit) => {
      const [x, size] = [start * width, share * width];
      start += share;
      const box = { x, y, width: Math.max(size - 1, 0), height: 34 };
      const name = text(x + size / 2, y + 22, String(digit), { "text-anchor": "middle", class: "digit" });
      const kind = `segment${digit === step.digit ? " chosen" : ""}`;
      return [svg("rect", { ...box, class: kind }), ...(size > 12 ? [name] : [])];
    });
    const before = prefix.length ? `after ${prefix.join("")}` : "first digit";
    parts.unshift(text(0, y - 9, before, { class: "muted" }));
    if (step.quantile === undefined) return parts;
    const x = Math.min(Math.max(step.quantile * width, 1), width - 1);
    const anchor = x > width - 40 ? "end" : x < 110 ? "start" : "middle";
    const shift = anchor === "start" ? Math.max(x, 84) : x;
    parts.push(
      svg("path", { d: `M${x} ${y - 3} V${y + 38}`, class: "needle" }),
      text(shift, y - 9, percent(step.quantile, 1), { "text-anchor": anchor, class: "strong" }),
    );
    return parts;
  }

  function drawWalk(width) {
    const steps = walkSteps();
    const digits = steps.map((step) => step.digit);
    return steps.slice(0, state.steps).flatMap((step, i) => {
      const y = 26 + 84 * i;
      const parts = drawLevel(step, y, width, digits.slice(0, i));
      if (i + 1 < state.steps) {
        const [left, right] = [step.before * width, (step.before + step.share) * width];
        const wedge = `M${left} ${y + 34} L${right} ${y + 34} L${width} ${y + 84} L0 ${y + 84} Z`;
        parts.unshift(svg("path", { d: wedge, class: "wedge" }));
      }
      return parts;
    });
  }

  function explain(step, i, digits) {
    const place = ["first", "second", "third"][i];
    if (state.kind === "greedy") return `The likeliest ${place} digit is ${step.digit}, with ${percent(step.share, 1)}.`;
    const smaller = step.digit ? `Digits below ${step.digit} hold ${percent(step.before, 1)}` : "Nothing lies below 0";
    const last = i === 2;
    const [goal, before, share] = [step.quantile, step.before, step.share].map((p) => percent(p, 1));
    const rest = `(${goal} − ${before}) / ${share} = ${percent(step.rest, 1)}`;
    return (
      `${smaller}; with ${step.digit} it is ${percent(step.before + step.share, 1)}, past the marker at ` +
      `${percent(step.quantile, 1)}. So the ${place} digit is ${step.digit}. ` +
      (last
        ? `The number is ${digits.join("")}.`
        : `Among numbers that begin with ${digits.slice(0, i + 1).join("")}, the marker is at ${rest}.`)
    );
  }

  function updateWalk() {
    const steps = walkSteps();
    const digits = steps.map((step) => step.digit);
    const label = `The digits ${digits.slice(0, state.steps).join(", ")}, found one after the other`;
    show(byId("walk-chart"), 84 * state.steps - 8, label, drawWalk);
    const items = steps.slice(0, state.steps).map((step, i) => html("li", {}, explain(step, i, digits)));
    byId("walk-steps").replaceChildren(...items);
    byId("walk-next").textContent = state.steps < 3 ? "Next digit" : "Start again";
  }

  // A digit too many.

  function updateExtra() {
    const longer = readings.withExtraDigit(state.probs, state.extra);
    const read = readings.readAll(state.probs);
    const median = readings.quantileOf(longer, 0.5);
    const mean = readings.mean(longer);
    const errorOf = (probs) => Math.round(readings.expectedError(probs, read.median));
    const row = (name, masked, free) => [name, String(masked), String(free), `${(free - masked).toFixed(0)}`];
    fillTable(byId("extra-table"), ["Reading", "3 digits", "sometimes 4", "moves by"], [
      row("Median", read.median, median),
      row("Mean", Math.round(read.mean), Math.round(mean)),
      row("Error of a random answer", errorOf(state.probs), errorOf(longer)),
    ]);
    byId("extra-value").textContent = percent(state.extra, 1);
    byId("extra-note").textContent =
      state.extra === 0
        ? "Without it both columns are the same."
        : "A few numbers that are ten times too large move the mean and the errors, hardly the median. The remedy: write all " +
          "answers with one width (007), and let the model write no other.";
  }

  /** What the sliders say besides their values: what comes out. */
  function describeSliders() {
    const { median, low, high } = readings.readAll(state.probs);
    for (const key of ["center", "spread"])
      byId(key).setAttribute("aria-valuetext", `${state[key]}; median ${median}, 90 % interval ${low} to ${high}`);
    const mean = Math.round(readings.mean(readings.withExtraDigit(state.probs, state.extra)));
    byId("extra").setAttribute("aria-valuetext", `${percent(state.extra, 1)}; mean ${mean}`);
  }

  function updateAll() {
    byId("center-value").textContent = String(state.center);
    byId("spread-value").textContent = String(state.spread);
    makeProbs();
    updateChart();
    updateWalk();
    updateExtra();
    describeSliders();
  }

  /** Change the state, show it and store it. */
  function change(changes, merge = "") {
    Object.assign(state, changes);
    updateAll();
    address.changed(merge);
  }

  function onSlider(id, key, factor = 1) {
    byId(id).addEventListener("input", (event) => change({ [key]: Number(event.target.value) * factor }, key));
  }

  const shapes = [["bell", "one bell"], ["skewed", "skewed"], ["camps", "two camps"]];
  const chooseShape = radios(byId("shape"), shapes, state.shape, (value) => change({ shape: value, steps: 1 }));
  const walks = [["greedy", "greedy"], ...Object.entries(WALKS).map(([key, [name]]) => [key, name])];
  const chooseWalk = radios(byId("walk-kind"), walks, state.kind, (value) => change({ kind: value, steps: 1 }));
  byId("walk-next").addEventListener("click", () => change({ steps: state.steps < 3 ? state.steps + 1 : 1 }));
  onSlider("center", "center");
  onSlider("spread", "spread");
  onSlider("extra", "extra", 0.01);

  const numberOf = (text, id) => address.numberOf(text, id, Number(byId(id).min), Number(byId(id).max));

  function oneOf(text, key, options) {
    const values = options.map(([value]) => value);
    if (!values.includes(text)) throw new Error(`“${key}=${text}” is not one of ${values.join(", ")}.`);
    return text;
  }

  const fields = () => ({
    shape: state.shape,
    center: String(state.center),
    spread: String(state.spread),
    walk: state.kind,
    steps: String(state.steps),
    extra: String(Number((100 * state.extra).toFixed(1))),
  });
  const defaults = fields();
  byId("numbers-tools").append(address.copyButton("numbers"));
  address.part({
    write: () => Object.fromEntries(Object.entries(fields()).map(([key, value]) => [key, value === defaults[key] ? "" : value])),
    read: (given) => {
      const { shape, center, spread, walk, steps, extra } = { ...defaults, ...given };
      Object.assign(state, {
        shape: oneOf(shape, "shape", shapes),
        center: numberOf(center, "center"),
        spread: numberOf(spread, "spread"),
        kind: oneOf(walk, "walk", walks),
        steps: Number(oneOf(steps, "steps", [["1"], ["2"], ["3"]])),
        extra: numberOf(extra, "extra") / 100,
      });
      chooseShape(shape);
      chooseWalk(walk);
      for (const [id, value] of Object.entries({ center, spread, extra })) byId(id).value = value;
      updateAll();
    },
  });
  onResize(updateAll);
})();
