/** The loss playground: bars to drag, a target, and what every loss says. */
"use strict";

const lossPage = (() => {
  const { html, svg, byId, percent, short, radios } = drawing;
  const SMALLEST = 1e-4; // no probability is zero, as with a softmax
  const UNCERTAIN = [0, 0, 0.15, 0.2, 0.3, 0.2, 0.15, 0, 0, 0];
  const TOKENS = [...losses.VALUES.map(String), "text"];

  /** Name in the library, name on the page, and what it does. */
  const LOSSES = [
    ["cross_entropy", "Cross-entropy", "Minus the log of the right digit's probability. All wrong digits are equally wrong."],
    ["wasserstein", "NTL-WAS", "The expected distance from the right digit: each probability times how far off it is."],
    ["crps", "CRPS", "NTL-WAS minus half the expected distance between two guesses, so being honest about doubt pays off."],
    ["expected_value", "NTL-MSE", "Squared error of the expected digit. It is zero whenever the mean is right, by whatever digits."],
    ["expected_value_absolute", "NTL-MAE", "Absolute error of the expected digit. Like NTL-MSE it only sees the mean."],
    ["expected_value_vocabulary", "RAFT", "Squared error of the expectation over all tokens. Text counts as 0."],
    ["gaussian_cross_entropy", "Gaussian CE", "Cross-entropy with a bell around the right digit as the label."],
    ["smoothed_wasserstein", "Smoothed NTL-WAS", "The work of moving the prediction to a bell around the right digit."],
    ["dist2", "Dist2", "Divergence from a target that decays with the squared distance."],
    ["smmd", "SMMD", "A smooth distance between distributions; errors on neighbours count nearly as one."],
    ["digit_entropy", "DEL", "Binary cross-entropy of each digit's own logit, weighted with its probability."],
    ["number_level", "NumberLevel", "Relative error of the expected number, from 0 to 1."],
    ["relative_error", "Relative error", "Relative error of the likeliest number (part of NTIL), zero once the likeliest digit is right."],
    ["magnitude", "Magnitude", "Difference in order of magnitude of the likeliest number (part of NTIL)."],
    ["ntil", "NTIL", "NTL-WAS, plus the relative error and the magnitude of the likeliest number."],
  ];

  const spread = (shares, text = 0) => [...shares, text];
  const all = (digit, share) => losses.VALUES.map((v) => (v === digit ? share : (1 - share) / 9));

  // The smallest probabilities lie above 4 on average; this evens them out.
  const HALVES = spread([0, 0, 0, 0.48 + 2.5 * SMALLEST, 0.04, 0.48 - 2.5 * SMALLEST, 0, 0, 0, 0]);

  const LAMBDA = 0.3; // the library's default weight of the number term

  /**
   * Label, target (null: uncertain), probabilities, loss to look at, beside cross-entropy or alone, and what to notice:
   * a text, or a function of what a loss charges.
   */
  const PRESETS = [
    ["Near: 3 for 4", 4, spread(all(3, 0.9)), "wasserstein", "beside",
      (cost) => `The answer is 4, the model says 3: cross-entropy charges ${cost("cross_entropy")}, ` +
        `NTL-WAS ${cost("wasserstein")}. Now try 9 for 4.`],
    ["Far: 9 for 4", 4, spread(all(9, 0.9)), "wasserstein", "beside",
      (cost) => `The model says 9: cross-entropy charges ${cost("cross_entropy")}, as for 3. NTL-WAS charges ` +
        `${cost("wasserstein")}: it knows that 9 is farther away.`],
    ["Half on 3, half on 5", 4, HALVES, "expected_value", "alone",
      "The mean of 3 and 5 is 4, so NTL-MSE is zero and has no arrows: it is blind here. NTL-WAS charges 1 and pushes 4 up."],
    ["No idea", 4, new Array(11).fill(1), "wasserstein", "alone",
      "All tokens are equally likely. The arrows of NTL-WAS push digits down the more, the farther away they are."],
    ["Mostly text", 4, spread([0, 0, 0.02, 0.06, 0.24, 0.06, 0.02, 0, 0, 0], 0.6), "wasserstein", "alone",
      "Number losses look at digits only and miss that 60 % is on text. So they are added to cross-entropy, which sees it."],
    ["In doubt, honest", null, spread(UNCERTAIN), "wasserstein", "alone",
      "Here the right digit varies between 2 and 6 (dashed), and the prediction says so. Train on NTL-WAS, then on CRPS."],
    ["In doubt, too sure", null, spread(all(4, 0.99)), "crps", "alone",
      "All on the median: for NTL-WAS this is better than being honest (it over-sharpens). CRPS and cross-entropy disagree."],
  ];

  const OWN_NOTE = "Your own prediction. Which losses notice how far away it is?";
  const TRAIN_NOTE = "Follow the arrows, and see where this loss leads.";

  const state = { logits: [], target: 4, loss: "wasserstein", objective: "beside", timer: 0 };
  const listeners = [];

  const labels = () => (state.target === null ? UNCERTAIN : losses.VALUES.map((v) => (v === state.target ? 1 : 0)));
  const probs = () => losses.softmax(state.logits);

  /** Set probabilities, up to a factor; none falls below the smallest. */
  function setProbs(weights) {
    const total = weights.reduce((a, b) => a + b, 0);
    const raised = losses.softmax(weights.map((w) => Math.log(Math.max(w / total, SMALLEST))));
    state.logits = raised.map(Math.log);
  }

  /** Give one token a probability; the others share the rest as before. */
  function setOne(index, probability) {
    const p = Math.min(Math.max(probability, SMALLEST), 0.99);
    const before = probs();
    const others = 1 - before[index];
    setProbs(before.map((q, i) => (i === index ? p : (q * (1 - p)) / others)));
    stopTraining();
    byId("preset-note").textContent = OWN_NOTE;
    update();
  }

  /** A bar: its arrow, the track with the fill, and its texts. */
  function makeBar(token, index) {
    const fill = html("span", { class: "fill" });
    const truth = html("span", { class: "truth" });
    const track = html("span", { class: "track" }, fill, truth);
    const push = html("span", { class: "push", "aria-hidden": "true" });
    const value = html("span", { class: "value" });
    const attributes = {
      class: "bar", role: "slider", tabindex: "0", "aria-label": index < 10 ? `Digit ${token}` : "Text",
      "aria-orientation": "vertical", "aria-valuemin": "0", "aria-valuemax": "100", "data-token": token,
    };
    const bar = html("div", attributes, push, value, track, html("span", { class: "name" }, token));
    const drag = (event) => {
      const box = track.getBoundingClientRect();
      setOne(index, (box.bottom - event.clientY) / box.height);
    };
    bar.addEventListener("pointerdown", (event) => {
      bar.setPointerCapture(event.pointerId);
      drag(event);
    });
    bar.addEventListener("pointermove", (event) => bar.hasPointerCapture(event.pointerId) && drag(event));
    bar.addEventListener("keydown", (event) => onKey(event, index));
    return { bar, fill, truth, push, value };
  }

  function onKey(event, index) {
    const steps = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1 };
    const ends = { Home: 0, End: 1 };
    if (event.key in steps) setOne(index, probs()[index] + steps[event.key]);
    else if (event.key in ends) setOne(index, ends[event.key]);
    else return;
    event.preventDefault();
  }

  /** Loss and gradient of what is trained: the chosen loss, alone or added to cross-entropy. */
  function evaluateObjective(logits = state.logits) {
    const chosen = losses.evaluate(state.loss, logits, labels());
    if (state.objective === "alone" || state.loss === "cross_entropy") return chosen;
    const entropy = losses.evaluate("cross_entropy", logits, labels());
    return {
      loss: entropy.loss + LAMBDA * chosen.loss,
      gradient: entropy.gradient.map((g, i) => g + LAMBDA * chosen.gradient[i]),
    };
  }

  const largestOf = (gradient) => Math.max(...gradient.map(Math.abs));
  const NO_IDEA = new Array(11).fill(0);

  /** What a gradient is large or small beside: the larger of itself and a third of that with no idea. */
  const scaleOf = (gradient, withNoIdea) => Math.max(largestOf(gradient), largestOf(withNoIdea) / 3, 1e-12);

  /** An arrow for a push, up or down; the square root keeps small ones visible. */
  function drawPush(share) {
    const picture = svg("svg", { viewBox: "0 0 16 48", width: 16, height: 48 });
    const length = 23 * Math.sqrt(Math.abs(share));
    if (length < 1.5) {
      picture.append(svg("circle", { cx: 8, cy: 24, r: 1.5, class: "still" }));
      return picture;
    }
    const sign = share > 0 ? -1 : 1;
    const tip = 24 + sign * length;
    const head = Math.min(5.5, 0.6 * length);
    const path = `M8 24 L8 ${tip} M${8 - head} ${tip - sign * head} L8 ${tip} L${8 + head} ${tip - sign * head}`;
    picture.append(svg("path", { d: path, class: share > 0 ? "up" : "down" }));
    return picture;
  }

  /** A row of the table of losses; a native radio button. */
  function makeRow([name, label]) {
    const input = html("input", { type: "radio", name: "loss", value: name });
    const value = html("span", { class: "loss-value", "data-loss": name });
    const gradient = html("span", { class: "gradient", "aria-hidden": "true" });
    const row = html("label", { class: "loss-row" }, input, html("span", { class: "loss-name" }, label), gradient, value);
    input.addEventListener("change", () => chooseLoss(name));
    return { row, input, value, gradient, name };
  }

  /** Eleven small bars, up for tokens that a step pushes up. */
  function drawGradient(pushes, scale) {
    const picture = svg("svg", { viewBox: "0 0 77 20", width: 77, height: 20 });
    picture.append(svg("line", { x1: 0, x2: 77, y1: 10, y2: 10, class: "zero" }));
    pushes.forEach((push, i) => {
      const height = 9 * Math.sqrt(Math.abs(push) / scale);
      const y = push > 0 ? 10 - height : 10;
      picture.append(svg("rect", { x: 7 * i + 1, y, width: 5, height, class: push > 0 ? "up" : "down" }));
    });
    return picture;
  }

  const bars = TOKENS.map(makeBar);
  const rows = LOSSES.map(makeRow);

  function chooseLoss(name) {
    state.loss = name;
    stopTraining();
    update();
  }

  /** Draw everything from the state. */
  function update() {
    const now = probs();
    const label = labels();
    const pushes = evaluateObjective().gradient.map((g) => -g);
    const scale = scaleOf(pushes, evaluateObjective(NO_IDEA).gradient);
    bars.forEach(({ bar, fill, truth, push, value }, i) => {
      fill.style.height = percent(now[i], 2).replace(" ", "");
      truth.style.height = percent(label[i] || 0, 2).replace(" ", "");
      truth.hidden = !label[i];
      bar.classList.toggle("right", i === state.target);
      bar.classList.toggle("in-doubt", state.target === null);
      bar.setAttribute("aria-valuenow", (100 * now[i]).toFixed(1));
      const share = pushes[i] / scale;
      const direction = Math.abs(share) < 0.005 ? "not pushed" : share > 0 ? "pushed up" : "pushed down";
      bar.setAttribute("aria-valuetext", `${percent(now[i], 1)}, ${direction}`);
      value.textContent = (100 * now[i]).toFixed(now[i] < 0.095 ? 1 : 0);
      push.replaceChildren(drawPush(share));
    });
    rows.forEach(({ row, input, value, gradient, name }) => {
      const result = losses.evaluate(name, state.logits, label);
      value.textContent = short(result.loss);
      const ownScale = scaleOf(result.gradient, losses.evaluate(name, NO_IDEA, label).gradient);
      gradient.replaceChildren(drawGradient(result.gradient.map((g) => -g), ownScale));
      input.checked = name === state.loss;
      row.classList.toggle("chosen", input.checked);
    });
    const [, title, about] = LOSSES.find(([name]) => name === state.loss);
    byId("loss-about").textContent = `${title}: ${about}`;
    const cost = short(losses.evaluate(state.loss, state.logits, label).loss);
    byId("now").replaceChildren(`${title} `, html("strong", {}, cost));
    listeners.forEach((listener) => listener());
  }

  function stopTraining() {
    cancelAnimationFrame(state.timer);
    state.timer = 0;
    byId("train").textContent = "Train";
  }

  /** One step of gradient descent, at most `pace` for each logit. */
  function trainingStep(pace) {
    const { gradient } = evaluateObjective();
    const scale = pace.step / Math.max(largestOf(gradient), pace.floor);
    setProbs(losses.softmax(state.logits.map((z, i) => z - scale * gradient[i])));
  }

  const STEPS = 400;
  const STEPS_PER_FRAME = 2;

  /** Follow the arrows to the end, or until stopped. */
  function train() {
    if (state.timer) {
      stopTraining();
      return;
    }
    const start = evaluateObjective();
    const title = LOSSES.find(([name]) => name === state.loss)[1];
    const scale = scaleOf(start.gradient, evaluateObjective(NO_IDEA).gradient);
    if (largestOf(start.gradient) < 1e-6 * scale) {
      byId("train-note").textContent = `${title} has no gradient here: nothing moves.`;
      return;
    }
    const pace = { step: 0.12, floor: 0.05 * scale };
    const finish = () => {
      const end = evaluateObjective().loss;
      byId("train-note").textContent = `After ${STEPS} steps the loss went from ${short(start.loss)} to ${short(end)}.`;
      stopTraining();
    };
    let left = STEPS;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const frame = () => {
      const now = still ? left : STEPS_PER_FRAME;
      for (let step = 0; step < now; step++) trainingStep(pace);
      left -= now;
      update();
      if (left > 0) state.timer = requestAnimationFrame(frame);
      else finish();
    };
    byId("train").textContent = "Stop";
    byId("train-note").textContent = "Training …";
    state.timer = requestAnimationFrame(frame);
  }

  function usePreset([, target, weights, loss, objective, note]) {
    Object.assign(state, { target, loss, objective });
    setProbs(weights);
    stopTraining();
    chooseTarget(target === null ? "doubt" : String(target));
    chooseObjective(objective);
    const cost = (name) => short(losses.evaluate(name, state.logits, labels()).loss);
    byId("train-note").textContent = TRAIN_NOTE;
    byId("preset-note").textContent = typeof note === "string" ? note : note(cost);
    update();
  }

  function makePreset(preset) {
    const button = html("button", { type: "button", class: "pill" }, preset[0]);
    button.addEventListener("click", () => usePreset(preset));
    return button;
  }

  byId("bars").append(...bars.map(({ bar }) => bar));
  byId("loss-table").append(...rows.map(({ row }) => row));
  byId("presets").append(...PRESETS.map(makePreset));
  byId("train").addEventListener("click", train);
  const targets = [...losses.VALUES.map((v) => [String(v), String(v)]), ["doubt", "in doubt"]];
  const chooseTarget = radios(byId("target"), targets, "4", (value) => {
    state.target = value === "doubt" ? null : Number(value);
    stopTraining();
    update();
  });
  const objectives = [["beside", `cross-entropy + ${LAMBDA} × loss`], ["alone", "the loss alone"]];
  const chooseObjective = radios(byId("objective"), objectives, "beside", (value) => {
    state.objective = value;
    stopTraining();
    update();
  });
  usePreset(PRESETS[0]);

  return {
    probs,
    target: () => state.target,
    /** Call a function now and after every change. */
    onUpdate: (listener) => {
      listeners.push(listener);
      listener();
    },
  };
})();
