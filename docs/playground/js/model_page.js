/** Two models side by side, asked the same question. */
"use strict";

(() => {
  const { html, byId, fillTable, fillReadings, percent, onResize } = drawing;
  const { task } = MODELS;
  const loaded = MODELS.models.map((file) => ({ ...file, model: t5.load(file) }));
  const cards = [];
  let numbers = [12, 70, 45];

  const trueMean = () => numbers.reduce((total, x, i) => total + x * task.weights[i], 0);

  /** The three integers of a question, or null. */
  function parse(question) {
    const match = question.trim().match(/^(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})$/);
    return match && match.slice(1).map(Number);
  }

  /** What can be known at best: a bell around the true mean. */
  function bestPossible() {
    const weights = Array.from({ length: readings.NUMBERS }, (_, x) =>
      Math.exp(-0.5 * ((x - trueMean()) / task.noise) ** 2),
    );
    return weights.some((w) => w > 0) ? readings.normalize(weights) : null;
  }

  /** Three hundred numbers around the truth, so that the bumps can be seen. */
  function span() {
    const centre = Math.min(Math.max(trueMean(), 150), 849);
    return [Math.round(centre) - 150, Math.round(centre) + 150];
  }

  function updateCard({ label, model }, { chart, facts }, question) {
    const probs = t5.distribution(model, question);
    const read = readings.readAll(probs);
    const truth = trueMean();
    numberChart.draw(chart, probs, {
      label: `${label}: greedy ${read.greedy}, median ${read.median}; the true mean is ${truth}`,
      lines: [["true", truth, "truth"], ["greedy", read.greedy, "greedy"], ["median", read.median, "median"]],
      band: [read.low, read.high],
      beside: bestPossible(),
      span: span(),
    });
    const off = (x) => `${Math.abs(x - truth).toFixed(0)} off`;
    const rows = [
      ["Greedy", read.greedy, off(read.greedy)],
      ["Median", read.median, off(read.median)],
      ["Mean", read.mean.toFixed(1), off(read.mean)],
      ["90 % interval", `${read.low} to ${read.high}`, `${read.high - read.low} wide`],
    ];
    fillReadings(facts, rows);
  }

  /** Fields and models from the numbers; `typed` leaves the text field as it is. */
  function update(typed = false) {
    const question = numbers.join(" ");
    if (!typed) byId("question").value = question;
    sliders.forEach(({ slider, output }, i) => {
      slider.value = String(numbers[i]);
      output.textContent = String(numbers[i]);
    });
    const sum = task.weights.map((w, i) => `${w}·${numbers[i]}`).join(" + ");
    const strange = numbers.some((x) => x < task.smallest || x > task.largest);
    byId("question-note").textContent =
      `True mean: ${sum} = ${trueMean()}. The noise has a standard deviation of ${task.noise}.` +
      (strange ? ` The models have only seen ${task.smallest} to ${task.largest}: this question is new to them.` : "");
    byId("question").setAttribute("aria-invalid", "false");
    loaded.forEach((each, i) => updateCard(each, cards[i], question));
  }

  function onType(event) {
    const found = parse(event.target.value);
    if (found) {
      numbers = found;
      update(true);
      return;
    }
    byId("question").setAttribute("aria-invalid", "true");
    byId("question-note").textContent = 'Type three whole numbers with spaces between them, such as "12 70 45".';
  }

  let waiting = 0;
  /** Answer once per frame while a slider is dragged. */
  function onSlide() {
    numbers = sliders.map(({ slider }) => Number(slider.value));
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => update());
  }

  function makeSlider(weight, i) {
    const range = { min: task.smallest, max: task.largest, value: numbers[i] };
    const slider = html("input", { type: "range", id: `integer-${i}`, ...range });
    const output = html("output", {}, String(numbers[i]));
    slider.addEventListener("input", onSlide);
    const name = `${["First", "Second", "Third"][i]} number, counts ${weight} times `;
    byId("question-sliders").append(html("label", { for: slider.id }, name, output, slider));
    return { slider, output };
  }

  function makeCard({ label }) {
    const chart = html("div", { class: "chart" });
    const facts = html("dl", { class: "readings" });
    byId("model-cards").append(html("div", { class: "card" }, html("h3", {}, `Trained with ${label}`), chart, facts));
    cards.push({ chart, facts });
  }

  const sliders = task.weights.map(makeSlider);
  loaded.forEach(makeCard);
  byId("question").addEventListener("input", onType);
  fillTable(
    byId("model-table"),
    ["Mean absolute error", "greedy", "median", "mean", "interval covers", "width"],
    loaded.map(({ label, test }) => [
      label.replace("cross-entropy + ", "+ "),
      ...[test.greedy, test.median, test.mean].map((error) => error.toFixed(1)),
      percent(test.coverage, 1),
      test.width.toFixed(0),
    ]),
  );
  byId("model-table-note").textContent =
    `These two models, with the weights of this page, on ${task.test_size} questions that they were not trained on. The noise ` +
    `alone gives an error of ${task.floor.toFixed(1)}. Over five seeds the two are level by the median: the reading gains more ` +
    "than the loss.";
  onResize(() => update());
})();
