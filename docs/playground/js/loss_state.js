/** State of the section on losses: the prediction, the right digit, the chosen loss, and what is trained. */
"use strict";

const lossState = (() => {
  const SMALLEST = 1e-4; // no probability is zero, as with a softmax
  const UNCERTAIN = [0, 0, 0.15, 0.2, 0.3, 0.2, 0.15, 0, 0, 0];
  // The library's default weight of the number term, and the sigma of HL-Gauss.
  const DEFAULTS = { lambda: 0.3, sigma: 1 };
  const INSTEAD = ["cross_entropy", "hl_gauss"]; // in the place of cross-entropy, never beside it

  const spread = (shares, text = 0) => [...shares, text];
  const mostlyOn = (digit, share) => losses.VALUES.map((v) => (v === digit ? share : (1 - share) / 9));
  // The smallest probabilities lie above 4 on average; this evens them out.
  const HALVES = spread([0, 0, 0, 0.48 + 2.5 * SMALLEST, 0.04, 0.48 - 2.5 * SMALLEST, 0, 0, 0, 0]);

  /** Name in the address, title, right digit (null: in doubt), probabilities, loss to look at, beside cross-entropy or alone. */
  const PRESETS = [
    ["near", "Near: 3 for 4", 4, spread(mostlyOn(3, 0.9)), "hl_gauss", "beside"],
    ["far", "Far: 9 for 4", 4, spread(mostlyOn(9, 0.9)), "hl_gauss", "beside"],
    ["halves", "Half on 3, half on 5", 4, HALVES, "ntl_mse", "alone"],
    ["even", "No idea", 4, new Array(11).fill(1), "hl_gauss", "beside"],
    ["text", "Mostly text", 4, spread([0, 0, 0, 0, 0.4, 0, 0, 0, 0, 0], 0.6), "ntl_was", "alone"],
    ["honest", "In doubt, honest", null, spread(UNCERTAIN), "hl_gauss", "beside"],
    ["sure", "In doubt, too sure", null, spread(mostlyOn(4, 0.99)), "crps", "alone"],
  ].map(([name, title, target, weights, loss, objective]) => ({
    // With the usual smallest probability, the text preset would have a small gradient.
    name, title, state: { logits: toLogits(weights, name === "text" ? 1e-9 : SMALLEST), target, loss, objective },
  }));

  /** Logits of weights, scaled to probabilities of which none falls below the smallest. */
  function toLogits(weights, smallest = SMALLEST) {
    const total = weights.reduce((a, b) => a + b, 0);
    return losses.softmax(weights.map((w) => Math.log(Math.max(w / total, smallest)))).map(Math.log);
  }

  const START = { ...PRESETS[0].state, ...DEFAULTS };
  let state = START;
  let stored = state; // at the last finished change
  let merged = "";
  const past = [];
  const listeners = [];
  const beforehand = [];

  const labelsOf = (target) =>
    target === null ? UNCERTAIN : losses.VALUES.map((v) => (v === target ? 1 : 0));
  const evaluate = (name, logits = state.logits) => losses.evaluate(name, logits, labelsOf(state.target), state.sigma);
  const isInstead = () => INSTEAD.includes(state.loss);
  const isPlain = () => state.objective === "alone" || isInstead();

  /** Loss and gradient of what is trained: the chosen loss, alone or added to cross-entropy. */
  function evaluateObjective(logits = state.logits) {
    const chosen = evaluate(state.loss, logits);
    if (isPlain()) return chosen;
    const entropy = evaluate("cross_entropy", logits);
    return {
      loss: entropy.loss + state.lambda * chosen.loss,
      gradient: entropy.gradient.map((g, i) => g + state.lambda * chosen.gradient[i]),
    };
  }

  /** What is trained, in words. */
  const objectiveTitle = () =>
    isPlain() ? LOSS_NAMES.titleOf(state.loss) : `CE + ${state.lambda} × ${LOSS_NAMES.titleOf(state.loss)}`;

  const notify = () => listeners.forEach((listener) => listener());

  /** Show other values, in the middle of a change. */
  function show(changes) {
    state = { ...state, ...changes };
    notify();
  }

  const same = (a, b) =>
    ["target", "loss", "objective", "lambda", "sigma"].every((key) => a[key] === b[key]) && sameBars(a.logits, b.logits);

  /** Finish a change: undo returns to what was before it, and the address follows. */
  function commit(merge = "") {
    if (same(state, stored)) return;
    if (!(merge && merge === merged)) past.push(stored);
    merged = merge;
    stored = state;
    address.changed(merge);
    notify();
  }

  /** Stop what is going on; `keep` says whether what it has reached counts as a change. */
  const interrupt = (keep) => beforehand.forEach((listener) => listener(keep));

  /** A change by the visitor. */
  function change(changes, merge = "") {
    interrupt(true);
    show(changes);
    commit(merge);
  }

  /** Go to a state that is already in the history. */
  function restore(to) {
    state = to;
    stored = to;
    merged = "";
    notify();
  }

  function undo() {
    interrupt(true);
    if (!past.length) return;
    restore(past.pop());
    address.changed();
  }

  const largestOf = (gradient) => Math.max(...gradient.map(Math.abs));

  /** What a gradient is large or small beside: the larger of itself and a third of that with no idea. */
  const scaleOf = (gradient, withNoIdea) => Math.max(largestOf(gradient), largestOf(withNoIdea) / 3, 1e-12);

  /** Where a step pushes each token, as shares of the scale. */
  function pushes(gradient, withNoIdea) {
    const scale = scaleOf(gradient, withNoIdea);
    return gradient.map((g) => -g / scale);
  }

  /** Give one token a probability; the others share the rest as before. */
  function withOne(index, probability) {
    const p = Math.min(Math.max(probability, SMALLEST), 0.99);
    const before = losses.softmax(state.logits);
    const others = 1 - before[index];
    return { logits: toLogits(before.map((q, i) => (i === index ? p : (q * (1 - p)) / others))) };
  }

  const sameBars = (a, b) => a.every((z, i) => Math.abs(Math.exp(z) - Math.exp(b[i])) < 1e-9);

  /** The preset with these bars and this right digit, if any. */
  const presetOf = ({ logits, target }) =>
    PRESETS.find((preset) => preset.state.target === target && sameBars(preset.state.logits, logits));

  // In the address.

  function write() {
    const preset = PRESETS.find(({ state: { logits } }) => sameBars(logits, state.logits));
    const percents = losses.softmax(state.logits).map((p) => Number((100 * p).toPrecision(6)));
    const [first] = PRESETS;
    return {
      bars: preset === first ? "" : preset ? preset.name : percents.join(","),
      digit: state.target === 4 ? "" : state.target === null ? "doubt" : String(state.target),
      loss: state.loss === first.state.loss ? "" : state.loss,
      train: state.objective === "beside" ? "" : state.objective,
      lambda: state.lambda === DEFAULTS.lambda ? "" : String(state.lambda),
      sigma: state.sigma === DEFAULTS.sigma ? "" : String(state.sigma),
    };
  }

  function readBars(text) {
    const preset = PRESETS.find(({ name }) => name === text);
    if (preset) return preset.state.logits;
    const percents = text.split(",").map((part) => (part === "" ? NaN : Number(part)));
    if (percents.length !== 11 || !percents.every((p) => p >= 0 && p <= 100) || !percents.some((p) => p > 0))
      throw new Error(`its bars “${text}” are not eleven percentages.`);
    return toLogits(percents);
  }

  function read({ bars = "near", digit = "4", loss = START.loss, train = "beside", lambda = DEFAULTS.lambda, sigma = DEFAULTS.sigma }) {
    if (!/^(\d|doubt)$/.test(digit)) throw new Error(`the right digit “${digit}” is not one of 0 to 9.`);
    if (!losses.names.includes(loss)) throw new Error(`no loss is called “${loss}”.`);
    if (!["beside", "alone"].includes(train)) throw new Error(`“${train}” is neither “beside” nor “alone”.`);
    const target = digit === "doubt" ? null : Number(digit);
    const found = {
      logits: readBars(bars), target, loss, objective: train,
      lambda: address.numberOf(lambda, "lambda", 0, 3), sigma: address.numberOf(sigma, "sigma", 0.1, 10),
    };
    interrupt(false);
    if (same(found, state)) return;
    past.length = 0;
    restore(found);
  }

  address.part({ write, read });

  return {
    START, UNCERTAIN, PRESETS, SMALLEST, toLogits, labelsOf, evaluate, evaluateObjective, objectiveTitle, presetOf,
    withOne, show, commit, change, undo, mostlyOn, interrupt, pushes, scaleOf,
    isInstead,
    hasWeight: () => !isPlain(),
    canUndo: () => past.length > 0,
    get: () => state,
    probs: () => losses.softmax(state.logits),
    labels: () => labelsOf(state.target),
    /** Call a function now and after every change. */
    onChange: (listener) => {
      listeners.push(listener);
      listener();
    },
    /** Call a function before the visitor changes something (with true) or follows the history (with false). */
    onInterrupt: (listener) => beforehand.push(listener),
  };
})();
