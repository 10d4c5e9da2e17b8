/** The controls of the section on losses: examples, the right digit, training, undo, and what stays in view. */
"use strict";

(() => {
  const { html, byId, short, radios } = drawing;
  const STEPS = 400;
  const STEPS_PER_FRAME = 2;
  const NO_IDEA = new Array(11).fill(0);
  const TRAIN_NOTE = "Follow the arrows, and see where this loss leads.";

  // Training.

  let training = null;

  function noteTraining(text) {
    byId("train-note").textContent = text;
    byId("train").textContent = training ? "Stop" : "Train";
  }

  /** The logits after one step of gradient descent, at most `pace.step` for each. */
  function trainingStep(logits, pace) {
    const { gradient } = lossState.evaluateObjective(logits);
    const scale = pace.step / Math.max(...gradient.map(Math.abs), pace.floor);
    return lossState.toLogits(losses.softmax(logits.map((z, i) => z - scale * gradient[i])));
  }

  /** Stop; what was reached is a change unless `keep` is false. */
  function stop(keep) {
    if (training === null) return;
    cancelAnimationFrame(training.timer);
    const { start, done } = training;
    training = null;
    if (keep) lossState.commit();
    const steps = done < STEPS ? `Stopped after ${done} of ${STEPS} steps` : `After ${STEPS} steps`;
    noteTraining(`${steps}: ${short(start)} became ${short(lossState.evaluateObjective().loss)}.`);
  }

  function advance() {
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const count = still ? STEPS - training.done : STEPS_PER_FRAME;
    let { logits } = lossState.get();
    for (let step = 0; step < count; step++) logits = trainingStep(logits, training.pace);
    lossState.show({ logits });
    training.done += count;
    if (training.done < STEPS) training.timer = requestAnimationFrame(advance);
    else stop(true);
  }

  /** Follow the arrows to the end, or until stopped. */
  function train() {
    if (training !== null) {
      stop(true);
      return;
    }
    const start = lossState.evaluateObjective();
    const withNoIdea = lossState.evaluateObjective(NO_IDEA).gradient;
    if (lossState.pushes(start.gradient, withNoIdea).every((push) => Math.abs(push) < captions.STILL)) {
      noteTraining(`${lossState.objectiveTitle()} has no gradient here: nothing moves.`);
      return;
    }
    const floor = 0.05 * lossState.scaleOf(start.gradient, withNoIdea);
    training = { start: start.loss, done: 0, pace: { step: 0.12, floor } };
    noteTraining("Training …");
    training.timer = requestAnimationFrame(advance);
  }

  lossState.onInterrupt((keep) => {
    stop(keep);
    noteTraining(TRAIN_NOTE);
  });

  // Controls.

  const presets = lossState.PRESETS.map((preset) => {
    const button = html("button", { type: "button", class: "pill" }, preset.title);
    button.addEventListener("click", () => lossState.change(preset.state));
    return { button, preset };
  });
  byId("presets").append(...presets.map(({ button }) => button));
  byId("train").addEventListener("click", train);
  byId("undo").addEventListener("click", lossState.undo);
  byId("reset").addEventListener("click", () => lossState.change(lossState.START));
  byId("losses-tools").append(address.copyButton("losses"));

  const targets = [...losses.VALUES.map((v) => [String(v), String(v)]), ["doubt", "in doubt"]];
  const chooseTarget = radios(byId("target"), targets, "4", (value) =>
    lossState.change({ target: value === "doubt" ? null : Number(value) }),
  );
  const objectives = [["beside", "cross-entropy + λ × loss"], ["alone", "the loss alone"]];
  const chooseObjective = radios(byId("objective"), objectives, "beside", (objective) => lossState.change({ objective }));

  byId("lambda").addEventListener("input", (event) => lossState.change({ lambda: Number(event.target.value) }, "lambda"));

  /** A cost that stays in view: its name and its value. */
  const cost = (name, value, attributes = {}) =>
    html("div", attributes, html("dt", {}, name), html("dd", {}, short(value)));

  function update() {
    const { target, loss, objective, lambda } = lossState.get();
    const chosen = lossState.presetOf(lossState.get());
    presets.forEach(({ button, preset }) => button.setAttribute("aria-pressed", String(preset === chosen)));
    chooseTarget(target === null ? "doubt" : String(target));
    chooseObjective(objective);
    byId("objective").disabled = lossState.isInstead();
    byId("lambda").value = String(lambda);
    byId("lambda").disabled = !lossState.hasWeight();
    byId("lambda-value").textContent = String(lambda);
    byId("undo").disabled = !lossState.canUndo();
    const costs = [cost("Cross-entropy", lossState.evaluate("cross_entropy").loss)];
    // HL-Gauss is what is trained; NTL-WAS stands beside it to compare.
    const beside = loss === "hl_gauss" ? "ntl_was" : loss;
    if (beside !== "cross_entropy") costs.push(cost(LOSS_NAMES.titleOf(beside), lossState.evaluate(beside).loss));
    const trained = `Trained: ${lossState.objectiveTitle()}`;
    costs.push(cost(trained, lossState.evaluateObjective().loss, { class: "trained" }));
    byId("costs").replaceChildren(...costs);
  }

  noteTraining(TRAIN_NOTE);
  lossState.onChange(update);
})();
