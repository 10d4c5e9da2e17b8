/** Numbers that a visitor types: what each loss charges for each digit, and for the whole number. */
"use strict";

(() => {
  const { html, byId, short, percent, tell } = drawing;
  const { isDigit, END } = numberLosses;
  const NAMES = [
    "cross_entropy", "hl_gauss", "ntl_was", "place_weighted", "ntil", "number_level", "crps", "ntl_mse", "ntl_mae",
    "ntl_huber", "raft", "gaussian_smoothing", "smoothed_wasserstein", "dist2", "smmd", "del_loss",
  ];
  const LOSSES = NAMES.map((name) => [name, name === "place_weighted" ? "… weighted by place" : LOSS_NAMES.titleOf(name)]);
  const FEW = 6;
  const EXAMPLES = [
    ["398 for 405", "405", "398", true],
    ["505 for 405", "405", "505", true],
    ["3.2 for 3.14", "3.14", "3.2", true],
    ["5 for −5", "-5", "5", true],
    ["4057 for 405", "405", "4057", false],
  ];
  const DEFAULTS = { truth: "405", said: "398", sure: 0.9, padded: true };
  const state = { ...DEFAULTS, all: false };

  /** A typed number in plain digits. */
  const plain = (text) => numberLosses.textOf(numberLosses.parse(text));
  /** The difference of two decimals, without the noise of binary fractions. */
  const apart = (one, other) => Number(Math.abs(one - other).toFixed(4));
  const minus = (text) => String(text).replace("-", "−");
  const list = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`);

  /** Losses of saying a number, beside its tokens and both numbers in plain digits. */
  function judge(said) {
    const { truth, sure, padded } = state;
    const aligned = numberLosses.align(numberLosses.parse(truth), numberLosses.parse(said), padded);
    const found = numberLosses.evaluate(aligned.labels, aligned.said, sure, { sigma: targetsPage.sigma(), padded });
    return { ...aligned, truth: plain(truth), number: plain(said), losses: found };
  }

  /** The truth with its first digit changed by one: far away, but wrong in one digit. */
  function farNumber(truth) {
    const first = truth.search(/[1-9]/);
    if (first < 0) return null;
    const digit = Number(truth[first]);
    return truth.slice(0, first) + (digit < 9 ? digit + 1 : 8) + truth.slice(first + 1);
  }

  const chip = (token) => html("span", { class: `token${isDigit(token) ? " digit" : ""}` }, minus(token));

  const distanceOf = (label, said) => (isDigit(label) && isDigit(said) ? Math.abs(label - said) : null);

  function makeRow(name, cells, last, style = "") {
    const tds = cells.map((cell) => html("td", {}, cell));
    return html("tr", style ? { class: style } : {}, html("th", { scope: "row" }, name), ...tds, html("td", { class: "whole" }, last));
  }

  function drawTable({ labels, said, rest, truth, number, losses }) {
    const shown = LOSSES.slice(0, state.all ? LOSSES.length : FEW);
    const head = ["Token", ...labels.map((_, i) => String(i + 1)), "whole number"];
    const off = labels.map((label, i) => distanceOf(label, said[i]));
    const cell = (value) => (value === null ? "–" : value.toFixed(2));
    const beyond = rest.filter((token) => token !== END);
    const spoken = minus(number) + (beyond.length ? ` (and then ${beyond.join("")})` : "");
    byId("typed-table").replaceChildren(
      html("thead", {}, html("tr", {}, ...head.map((words) => html("th", { scope: "col" }, words)))),
      html(
        "tbody",
        {},
        makeRow("Truth", labels.map(chip), minus(truth)),
        makeRow("Model says", said.map(chip), spoken),
        makeRow("Off by", off.map((value) => (value === null ? "–" : String(value))), String(apart(truth, number)), "under"),
        ...shown.map(([name, title]) => makeRow(name === "hl_gauss" ? `${title}, σ\u00a0${targetsPage.sigma()}` : title, losses[name].tokens.map(cell), short(losses[name].whole), "charge")),
      ),
    );
  }

  /** What a number that is farther away, but differs in one digit, shows about place value; or nothing. */
  function compareWithFar({ truth, number, losses }) {
    const far = farNumber(truth);
    if (far === null || apart(far, truth) <= apart(number, truth)) return [];
    const other = judge(far).losses;
    if (other.ntl_was.whole >= losses.ntl_was.whole) return [];
    const charges = (name) => `${short(other[name].whole)} for ${minus(far)} and ${short(losses[name].whole)} for ${minus(number)}`;
    const weights = other.ntil.whole < losses.ntil.whole ? " NTIL's weights, 1.2 per place, are too small to change the order." : "";
    const found = [
      `${minus(far)} is ${apart(far, truth)} off, but has only one wrong digit, by one. NTL-WAS charges ` +
        `${charges("ntl_was")}: a loss on digits does not know place value.${weights}`,
    ];
    if (other.number_level.whole > losses.number_level.whole)
      found.push(`${LOSS_NAMES.titleOf("number_level")} looks at the whole number and charges the farther one more: ${charges("number_level")}.`);
    return found;
  }

  /** Sentences on what the table shows. */
  function explain(judged) {
    const { labels, said, rest, truth, number } = judged;
    const doubt = percent(1 - state.sure);
    const digits = labels.map((label, i) => [label, said[i]]).filter(([label]) => isDigit(label));
    const off = digits.map(([label, spoken]) => distanceOf(label, spoken));
    const together = off.reduce((a, b) => a + b, 0);
    const distance = apart(truth, number);
    const sentences = [];
    if (labels.every((label, i) => label === said[i]) && !rest.length) {
      sentences.push(`The model says the truth. What the losses charge is its doubt, ${doubt} on other tokens.`);
    } else {
      const each = off.length > 1 && !off.includes(null) ? `; its digits are ${list(off)} off, ${together} together` : "";
      sentences.push(`As a number, ${minus(number)} is ${distance} off${each}.`);
    }
    sentences.push(...compareWithFar(judged));
    if (labels.some((label, i) => "+-".includes(label) && label !== said[i]))
      sentences.push("The sign is a text token: number losses ignore it, and only cross-entropy charges for it.");
    if (!state.padded && labels.some((label, i) => isDigit(label) !== isDigit(said[i])))
      sentences.push("Digits are compared from the left, whatever their place: write numbers with one width.");
    if (rest.length)
      sentences.push("The model goes on after the end: cross-entropy charges for that, and number losses do not see it.");
    return sentences.filter(Boolean);
  }

  /** Draw everything from the state; returns whether both texts are numbers. */
  function update() {
    byId("typed-sure-value").textContent = percent(state.sure);
    byId("typed-all").textContent = state.all ? "Fewer losses" : `All ${LOSSES.length} losses`;
    byId("typed-all").setAttribute("aria-expanded", String(state.all));
    const valid = ["truth", "said"].map((key) => tell(`typed-${key}`, () => numberLosses.spell(state[key]))).every(Boolean);
    byId("typed-result").classList.toggle("stale", !valid);
    if (!valid) return false;
    const judged = judge(state.said);
    drawTable(judged);
    byId("typed-note").replaceChildren(...explain(judged).map((sentence) => html("li", {}, sentence)));
    const cost = `NTL-WAS ${short(judged.losses.ntl_was.whole)}`;
    byId("typed-sure").setAttribute("aria-valuetext", `${percent(state.sure)}, ${cost}`);
    document.querySelectorAll("#typed-examples button").forEach((button, i) => {
      const [, truth, said, padded] = EXAMPLES[i];
      const chosen = truth === state.truth && said === state.said && padded === state.padded;
      button.setAttribute("aria-pressed", String(chosen));
    });
    return true;
  }

  function fillFields() {
    byId("typed-truth").value = state.truth;
    byId("typed-said").value = state.said;
    byId("typed-sure").value = String(Math.round(100 * state.sure));
    byId("typed-padded").checked = state.padded;
  }

  function onChange(id, read, merge = "") {
    byId(id).addEventListener("input", (event) => {
      Object.assign(state, read(event.target));
      if (update()) address.changed(merge);
    });
  }

  EXAMPLES.forEach(([title, truth, said, padded]) => {
    const button = html("button", { type: "button", class: "pill" }, title);
    button.addEventListener("click", () => {
      Object.assign(state, { truth, said, padded });
      fillFields();
      update();
      address.changed();
    });
    byId("typed-examples").append(button);
  });
  onChange("typed-truth", ({ value }) => ({ truth: value.trim() }), "truth");
  onChange("typed-said", ({ value }) => ({ said: value.trim() }), "said");
  onChange("typed-sure", ({ value }) => ({ sure: Number(value) / 100 }), "sure");
  onChange("typed-padded", ({ checked }) => ({ padded: checked }));
  byId("typed-all").addEventListener("click", () => {
    state.all = !state.all;
    update();
  });

  targetsPage.onChange(update);
  address.part({
    write: () => ({
      truth: state.truth === DEFAULTS.truth ? "" : state.truth,
      said: state.said === DEFAULTS.said ? "" : state.said,
      sure: state.sure === DEFAULTS.sure ? "" : String(Math.round(100 * state.sure)),
      written: state.padded ? "" : "as-typed",
    }),
    read: ({ truth = DEFAULTS.truth, said = DEFAULTS.said, sure = "90", written = "" }) => {
      [truth, said].forEach(numberLosses.parse);
      if (!(Number(sure) >= 50 && Number(sure) <= 99)) throw new Error(`“sure=${sure}” is not 50 to 99.`);
      if (!["", "as-typed"].includes(written)) throw new Error(`“written=${written}” is not “as-typed”.`);
      Object.assign(state, { truth, said, sure: Number(sure) / 100, padded: written === "" });
      fillFields();
      update();
    },
  });
  fillFields();
  update();
})();
