/** A pretrained model, which is too large for the page: its stored answers. */
"use strict";

(() => {
  const { html, byId, radios, fillReadings, percent, onResize } = drawing;
  const { sentences, settings, test } = ANSWERS;
  const [RATING, GREEDY, MEDIAN] = [0, 1, 2];
  const COLUMNS = { greedy: GREEDY, median: MEDIAN };
  const state = { chosen: 0, reading: "greedy" };

  function drawSentence() {
    const { greedy, median, mean, low, high, probs } = sentences[state.chosen];
    numberChart.draw(byId("answer-chart"), probs, {
      label: `Stored distribution: greedy ${greedy}, median ${median}, 90 % interval ${low} to ${high}`,
      lines: [["greedy", greedy, "greedy"], ["median", median, "median"]],
      band: [low, high],
      span: [0, 99],
    });
    fillReadings(byId("answer-readings"), [
      ["Greedy", greedy, "likeliest digits"],
      ["Median", median, "half lie below"],
      ["Mean", mean.toFixed(1), " "],
      ["90 % interval", `${low} to ${high}`, `${high - low} wide`],
    ]);
  }

  function drawTest() {
    const column = COLUMNS[state.reading];
    const name = { greedy: "Greedy answers", median: "Medians" }[state.reading];
    const count = (k) => new Set(test.rows.map((row) => row[k])).size;
    scatter.draw(byId("answer-test"), {
      label: `${name} to ${test.rows.length} test sentences against the mean of people's ratings`,
      points: test.rows.map((row) => [row[RATING], row[column]]),
      style: state.reading,
      x: { range: [0, 80], ticks: [0, 20, 40, 60, 80], title: "mean rating" },
      y: { range: [0, 80], ticks: [0, 20, 40, 60, 80] },
      line: [[0, 0], [80, 80]],
    });
    const { scores } = test;
    byId("answer-test-title").textContent = `Greedy decoding writes only ${count(GREEDY)} different numbers`;
    byId("answer-test-note").textContent =
      `${name} to ${test.rows.length} test sentences (up) and what about 20 people said on average (across). The median takes ` +
      `${count(MEDIAN)} values. On all ${test.size}, greedy answers are ` +
      `${scores.greedy_mae.toFixed(1)} off and medians ${scores.median_mae.toFixed(1)}; the 90 % intervals cover ` +
      `${percent(scores.coverage)}.`;
  }

  function choose(index) {
    state.chosen = index;
    byId("answer-text").value = String(index);
    drawSentence();
  }

  sentences.forEach(({ text }, i) => byId("answer-text").append(html("option", { value: i }, text)));
  byId("answer-text").addEventListener("change", (event) => {
    choose(Number(event.target.value));
    address.changed();
  });
  const chooseReading = radios(byId("answer-reading"), Object.keys(COLUMNS).map((name) => [name, name]), "greedy", (value) => {
    state.reading = value;
    drawTest();
    address.changed();
  });
  byId("answer-about").textContent =
    `SmolLM2-135M, a small language model, fine-tuned with cross-entropy on ${settings.rows} short texts, each rated by about 20 ` +
    "people from 0 (extremely negative) to 80 (extremely positive). It is too large for this page: these answers were computed " +
    "before and stored. The sentences were written for this page; nobody rated them. The model is wrong about some, such as " +
    "“Oh great, another update.”";
  address.part({
    write: () => ({
      text: state.chosen === 0 ? "" : String(state.chosen + 1),
      ratings: state.reading === "greedy" ? "" : state.reading,
    }),
    read: ({ text = "1", ratings = "greedy" }) => {
      if (!(Number(text) in [, ...sentences])) throw new Error(`“text=${text}” is not 1 to ${sentences.length}.`);
      if (!(ratings in COLUMNS)) throw new Error(`“ratings=${ratings}” is not one of ${Object.keys(COLUMNS).join(", ")}.`);
      state.reading = ratings;
      chooseReading(ratings);
      choose(Number(text) - 1);
      drawTest();
    },
  });
  onResize(() => {
    drawSentence();
    drawTest();
  });
})();
