/** The first screen: the first digit of two guesses for a true 40, and what a loss charges for each. */
"use strict";

(() => {
  const { html, svg, text, byId, show, radios, onResize } = drawing;
  const TARGET = 4;
  const LABELS = losses.VALUES.map((v) => (v === TARGET ? 1 : 0));
  const OPTIONS = ["cross_entropy", "ntl_was", "hl_gauss"].map((name) => [name, LOSS_NAMES.titleOf(name)]);
  const NUMBER = { whole: "40", decimals: "" };
  const SIGMA = 2; // of HL-Gauss
  const [SHARES] = wholeTargets.targetsOf(NUMBER, SIGMA); // of its target for the first digit
  const PAUSE = 1600; // milliseconds in which the first screen shows cross-entropy

  const costOf = (name, logits) =>
    name === "hl_gauss" ? losses.ofTargets(logits, SHARES) : losses.evaluate(name, logits, LABELS).loss;

  /** The two guesses are the page's first two examples. */
  const guesses = [...document.querySelectorAll(".said")].map((panel, i) => {
    const { logits } = lossState.PRESETS[i].state;
    const costs = Object.fromEntries(OPTIONS.map(([name]) => [name, costOf(name, logits)]));
    return { panel, said: Number(panel.dataset.said), probs: losses.softmax(logits), costs };
  });
  const least = SHARES.reduce((sum, share) => sum - (share > 0 ? share * Math.log(share) : 0), 0);
  const largest = Math.max(...guesses.flatMap(({ costs }) => Object.values(costs)));
  const FIRST = "hl_gauss";
  let chosen = FIRST;
  let timer = 0;

  const heightOf = (width) => (width > 200 ? 168 : 124);

  /** Bars of a guess; what cross-entropy looks at, what NTL-WAS does, and the targets of HL-Gauss. */
  function draw({ said, probs }, width) {
    const [base, tall] = [heightOf(width) - 20, heightOf(width) - 62];
    const slot = width / 10;
    const center = (digit) => slot * (digit + 0.5);
    const top = (digit) => base - Math.max((tall * probs[digit]) / 0.9, 2);
    const parts = losses.VALUES.flatMap((digit) => {
      const kind = digit === TARGET ? "right" : "";
      const box = { x: center(digit) - slot * 0.34, y: top(digit), width: slot * 0.68, height: base - top(digit), rx: 1.5 };
      const name = { "text-anchor": "middle", class: digit === TARGET ? "answer strong" : "muted" };
      return [svg("rect", { ...box, class: `block ${kind}` }), text(center(digit), base + 17, String(digit), name)];
    });
    const [from, to] = [center(said), center(TARGET)];
    const distance = Math.abs(said - TARGET);
    const share = `${(100 * probs[TARGET]).toFixed(1)} % on ${TARGET}`;
    const targets = losses.VALUES.filter((digit) => SHARES[digit] > 0.01).flatMap((digit) => {
      const y = base - (tall * SHARES[digit]) / 0.9;
      const name = { "text-anchor": "middle", class: "answer strong" };
      return [
        svg("line", { x1: center(digit) - slot * 0.45, x2: center(digit) + slot * 0.45, y1: y, y2: y, class: "alone" }),
        text(center(digit), Math.min(y, top(digit)) - 5, (100 * SHARES[digit]).toFixed(0), name),
      ];
    });
    const seen = said < TARGET ? { x: to - slot * 0.3, "text-anchor": "start" } : { x: to + slot * 0.4, "text-anchor": "end" };
    const peak = 8;
    const arc = `M${from} ${top(said) - 3} C${from} ${peak}, ${to} ${peak}, ${to} ${top(TARGET) - 5}`;
    const away = said < TARGET ? { x: to + 5, y: 34, "text-anchor": "start" } : { x: (from + to) / 2, y: 13, "text-anchor": "middle" };
    parts.push(
      svg("g", { class: "of-target" }, ...targets),
      svg("g", { class: "of-entropy" }, svg("text", { y: top(TARGET) - 8, ...seen, class: "answer strong" }, share)),
      svg(
        "g",
        { class: "of-distance" },
        svg("path", { d: arc, class: "way" }),
        svg("path", { d: `M${to - 4} ${top(TARGET) - 10} L${to} ${top(TARGET) - 5} L${to + 4} ${top(TARGET) - 10}`, class: "way" }),
        svg("text", { ...away, class: "answer strong" }, `${distance} away`),
      ),
    );
    return parts;
  }

  /** The parts of a guess's panel that stay. */
  function build(guess) {
    guess.chart = html("div", { class: "chart" });
    guess.fill = html("span", { class: "cost-fill" });
    guess.value = html("strong", {});
    guess.panel.append(
      html("p", { class: "said-title" }, "The model says ", html("b", {}, guess.panel.dataset.number)),
      guess.chart,
      html("div", { class: "cost" }, html("span", { class: "cost-track" }, guess.fill), guess.value),
    );
  }

  /** What the shown loss charges, and what the other does. */
  function describe(name) {
    const [near, far] = guesses.map(({ costs }) => costs);
    const words = (each) => `${near[each].toFixed(1)} and ${far[each].toFixed(1)}`;
    if (name === "cross_entropy")
      return `Cross-entropy sees only the probability on ${TARGET}: ${words(name)}. HL-Gauss charges ${words("hl_gauss")}.`;
    if (name === "ntl_was")
      return `NTL-WAS sees how far a digit is from ${TARGET}: ${words(name)}. HL-Gauss charges ${words("hl_gauss")}.`;
    const [near40, rest] = [TARGET, TARGET - 1].map((digit) => `${(100 * SHARES[digit]).toFixed(0)} % on ${digit}`);
    return (
      `HL-Gauss wants ${near40} and ${rest}, since 39 is near 40: ${words(name)}, ${least.toFixed(1)} at least. ` +
      `NTL-WAS charges ${words("ntl_was")}, 0 at least.`
    );
  }

  function update(name) {
    byId("hero").dataset.shown = name;
    byId("hero-note").textContent = describe(name);
    guesses.forEach(({ fill, value, costs }) => {
      fill.style.width = `${((100 * costs[name]) / largest).toFixed(1)}%`;
      value.textContent = costs[name].toFixed(1);
    });
    choose(name);
  }

  function set(name) {
    clearTimeout(timer);
    chosen = name;
    update(name);
  }

  const choose = radios(byId("hero-loss"), OPTIONS, chosen, (name) => {
    set(name);
    address.changed();
  });
  byId("line").append(address.copyText(() => byId("line").querySelector("code").textContent));
  guesses.forEach(build);
  onResize(() =>
    guesses.forEach((guess) => {
      const label = `${(100 * guess.probs[guess.said]).toFixed(0)} % on ${guess.said}; the right first digit is ${TARGET}`;
      show(guess.chart, heightOf(guess.chart.clientWidth), label, (width) => draw(guess, width));
    }),
  );
  address.part({
    write: () => ({ first: chosen === FIRST ? "" : chosen }),
    read: ({ first = FIRST }) => {
      if (!OPTIONS.some(([name]) => name === first)) throw new Error(`the first figure has no loss “${first}”.`);
      if (first !== chosen) set(first);
    },
  });
  set(chosen);
  // The figure begins with cross-entropy, so that the visitor sees what changes.
  if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches) {
    update("cross_entropy");
    timer = setTimeout(() => set(chosen), PAUSE);
  }
})();
