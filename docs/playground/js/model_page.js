/** Two models side by side, asked the same question, and their answers to the test set. */
"use strict";

(() => {
  const { html, byId, radios, fillTable, fillReadings, tell, percent, onResize } = drawing;
  const { task, models } = MODELS;
  const READINGS = ["greedy", "median"];
  const LIMIT = 120; // of the errors that are drawn
  const cards = [];
  const state = { numbers: numbersOf(task.example), reading: "greedy", answer: null };
  let service = null;

  function numbersOf(question) {
    return question.split(" ").map(Number);
  }

  const meanOf = (numbers) => numbers.reduce((total, x, i) => total + x * task.weights[i], 0);

  /**
   * The three numbers of a question.
   *
   * @throws {Error} with a sentence that says what is wrong.
   */
  function parse(question) {
    const words = question.trim().split(/[\s,;]+/).filter(Boolean);
    const wrong = words.find((word) => !/^\d+$/.test(word));
    if (wrong !== undefined) throw new Error(`“${wrong}” is not a whole number of 0 or more.`);
    const long = words.find((word) => word.length > 3);
    if (long !== undefined) throw new Error(`${long} has more than three digits.`);
    if (words.length !== 3) throw new Error(`Type three whole numbers, such as ${task.example}; there are ${words.length}.`);
    return words.map(Number);
  }

  /** What can be known at best: a bell around the true mean. */
  function bestPossible(mean) {
    const weights = Array.from({ length: readings.NUMBERS }, (_, x) => Math.exp(-0.5 * ((x - mean) / task.noise) ** 2));
    return weights.some((w) => w > 0) ? readings.normalize(weights) : null;
  }

  /** Three hundred numbers around the truth, so that the bumps can be seen. */
  function span(mean) {
    const center = Math.min(Math.max(mean, 150), 849);
    return [Math.round(center) - 150, Math.round(center) + 150];
  }

  const offBy = (x, mean) => `${Math.abs(x - mean).toFixed(0)} off`;

  function updateCard({ label }, { chart, facts }, probs, mean) {
    const read = readings.readAll(probs);
    numberChart.draw(chart, probs, {
      label: `${label}: greedy ${read.greedy}, median ${read.median}; the true mean is ${mean}`,
      lines: [["true", mean, "truth"], ["greedy", read.greedy, "greedy"], ["median", read.median, "median"]],
      band: [read.low, read.high],
      beside: bestPossible(mean),
      span: span(mean),
    });
    fillReadings(facts, [
      ["Greedy", read.greedy, offBy(read.greedy, mean)],
      ["Median", read.median, offBy(read.median, mean)],
      ["Mean", read.mean.toFixed(1), offBy(read.mean, mean)],
      ["90 % interval", `${read.low} to ${read.high}`, `${read.high - read.low} wide`],
    ]);
    return read;
  }

  /** Draw the answers that came last, on the cards and among those to the test set. */
  function drawAnswer() {
    if (state.answer === null) return;
    const { question, answers } = state.answer;
    const mean = meanOf(numbersOf(question));
    const found = answers.map((probs, i) => updateCard(models[i], cards[i], probs, mean));
    const medians = found.map(({ median }) => offBy(median, mean)).join(" and ");
    sliders.forEach(({ slider }, i) =>
      slider.setAttribute("aria-valuetext", `${numbersOf(question)[i]}; true mean ${mean}, medians ${medians}`),
    );
    byId("model-cards").classList.toggle("stale", byId("question").getAttribute("aria-invalid") === "true");
    byId("model-cards").setAttribute("aria-busy", "false");
    drawTest(mean, found);
  }

  /** The test set: how far each answer is from the true mean; with the question, if it was answered. */
  function drawTest(mean, found) {
    models.forEach(({ label, answers, off }, i) => {
      const points = answers.map((row, k) => {
        const right = meanOf(numbersOf(task.questions[k]));
        return [right, row[READINGS.indexOf(state.reading)] - right];
      });
      const error = found && found[i][state.reading] - mean;
      scatter.draw(cards[i].scatter, {
        label:
          `${label}: errors of the ${state.reading} answers to ${points.length} test questions, ` +
          `${off[state.reading].toFixed(1)} on average${found ? `; ${error} for your question` : ""}`,
        points,
        style: state.reading,
        x: { range: [50, 1000], ticks: [100, 300, 500, 700, 900], title: "true mean" },
        y: { range: [-LIMIT, LIMIT], ticks: [-LIMIT, -60, 0, 60, LIMIT] },
        line: [[50, 0], [1000, 0]],
        mark: found && [mean, error, `yours ${error > 0 ? "+" : ""}${String(error).replace("-", "−")}`],
      });
      cards[i].average.replaceChildren(
        `${state.reading === "greedy" ? "Greedy answers" : "Medians"} are `,
        html("strong", {}, off[state.reading].toFixed(1)),
        " off the true mean on average.",
      );
    });
  }

  /** What to know about the question: its mean, and whether the models have seen such. */
  function describe() {
    const mean = meanOf(state.numbers);
    const sum = task.weights.map((w, i) => `${w}·${state.numbers[i]}`).join(" + ");
    const said = [`True mean: ${sum} = ${mean}. The noise has a standard deviation of ${task.noise}.`];
    const { below, above, share } = task.rare;
    const errors = (key) => models.flatMap((model) => Object.values(model[key])).sort((a, b) => a - b).map(Math.round);
    const [rare, usual] = [errors("off_rare"), errors("off")];
    if (mean > 999) said.push("The models write three digits and cannot answer that.");
    else if (state.numbers.some((x) => x < task.smallest || x > task.largest))
      said.push(`The models have only seen ${task.smallest} to ${task.largest}: this question is new to them.`);
    else if (mean < below || mean > above)
      said.push(
        `A rare corner: ${percent(share)} of the training questions had a true mean ` +
          `${mean < below ? `below ${below}` : `above ${above}`}. Out there the models are ${rare[0]} to ` +
          `${rare[rare.length - 1]} off on average, instead of ${usual[0]} to ${usual[usual.length - 1]}.`,
      );
    byId("question-note").textContent = said.join(" ");
    byId("question-note").classList.toggle("warning", said.length > 1);
  }

  /** Fields from the numbers, and a question to the models; `typed` leaves the text field as it is. */
  function update(typed = false) {
    if (!typed) byId("question").value = state.numbers.join(" ");
    sliders.forEach(({ slider, output }, i) => {
      slider.value = String(state.numbers[i]);
      output.textContent = String(state.numbers[i]);
    });
    tell("question", () => {});
    describe();
    askModels();
  }

  function askModels() {
    if (!service) return;
    byId("model-cards").setAttribute("aria-busy", "true");
    service.ask(state.numbers.join(" "));
  }

  function onType(event) {
    if (!tell("question", () => void (state.numbers = parse(event.target.value)))) {
      byId("model-cards").classList.add("stale");
      return;
    }
    update(true);
    address.changed("question");
  }

  function ask(question, merge = "") {
    state.numbers = numbersOf(question);
    update();
    address.changed(merge);
  }

  function makeSlider(weight, i) {
    const range = { min: task.smallest, max: task.largest, value: state.numbers[i] };
    const slider = html("input", { type: "range", id: `integer-${i}`, ...range });
    const output = html("output", {}, String(state.numbers[i]));
    slider.addEventListener("input", () => {
      state.numbers = state.numbers.map((x, k) => (k === i ? Number(slider.value) : x));
      update();
      address.changed("question");
    });
    const name = `${["First", "Second", "Third"][i]} number, counts ${weight} times `;
    byId("question-sliders").append(html("label", { for: slider.id }, name, output, slider));
    return { slider, output };
  }

  function makeCard({ label }) {
    const chart = html("div", { class: "chart waiting" });
    const facts = html("dl", { class: "readings" });
    byId("model-cards").append(html("div", { class: "card" }, html("h3", {}, `Trained with ${label}`), chart, facts));
    fillReadings(facts, ["Greedy", "Median", "Mean", "90 % interval"].map((name) => [name, "…", " "]));
    const dots = html("div", { class: "chart" });
    const average = html("p", { class: "note" });
    byId("test-plots").append(html("div", {}, html("h4", {}, `Trained with ${label}`), dots, average));
    cards.push({ chart, facts, scatter: dots, average });
  }

  /** The models are large: they start when their section is near, and answer in a worker. */
  function startWhenNear() {
    const observer = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        service = answering.start(models, (answer) => {
          state.answer = answer;
          byId("models").dataset.computedIn = service.where();
          drawAnswer();
        });
        askModels();
      },
      { rootMargin: "400px" },
    );
    observer.observe(byId("models"));
  }

  const sliders = task.weights.map(makeSlider);
  models.forEach(makeCard);
  byId("question").addEventListener("input", onType);
  byId("another").addEventListener("click", () => ask(task.questions[Math.floor(Math.random() * task.questions.length)]));
  const chooseReading = radios(byId("test-reading"), READINGS.map((name) => [name, name]), state.reading, (value) => {
    state.reading = value;
    redraw();
    address.changed();
  });
  function redraw() {
    if (state.answer === null) drawTest();
    else drawAnswer();
  }
  fillTable(
    byId("model-table"),
    ["Off by", "greedy", "median", "mean", "coverage", "width"],
    models.map(({ label, test, off }) => [
      label,
      ...[off.greedy, off.median, off.mean].map((error) => error.toFixed(1)),
      percent(test.coverage, 1),
      test.width.toFixed(0),
    ]),
  );
  byId("model-table-note").textContent =
    `Mean distances from the true mean on ${task.test_size} questions that the models were not trained on, with the weights of this ` +
    "page; coverage and width of the 90 % intervals, which are for answers with noise. " +
    `With ${task.train_size} examples, the greedy answers of HL-Gauss have the lower error on each of six seeds. With 50,000 ` +
    "examples and long training, the two are level.";
  byId("models-tools").append(address.copyButton("models"));
  address.part({
    write: () => ({
      question: state.numbers.join(" ") === task.example ? "" : state.numbers.join(" "),
      test: state.reading === "greedy" ? "" : state.reading,
    }),
    read: ({ question = task.example, test = "greedy" }) => {
      const numbers = parse(question);
      if (!READINGS.includes(test)) throw new Error(`“test=${test}” is not one of ${READINGS.join(", ")}.`);
      Object.assign(state, { numbers, reading: test });
      chooseReading(test);
      update();
      redraw();
    },
  });
  update();
  onResize(redraw);
  startWhenNear();
})();
