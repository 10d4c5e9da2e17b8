/** What tokenizers do to numbers: from `ntloss inspect`, or by a rule on the visitor's own text. */
"use strict";

(() => {
  const { html, byId, radios, fillTable, percent } = drawing;
  const { RULES, inspect } = digitRules;
  const SENTENCES = TOKENIZERS[0].sentences.map(({ text }) => text);
  const NAMES = [...RULES, ...TOKENIZERS].map(({ name }) => name);
  const LONGEST = 200; // characters of a text of one's own
  const state = { chosen: 0, sentence: 0, own: "" };

  /** A token as a chip; spaces are shown as dots. */
  function chip([piece, kind]) {
    const unseen = !kind && /\d/.test(piece);
    const pieces = piece.split(/( )/).filter((part) => part !== "");
    const content = pieces.map((part) => (part === " " ? html("span", { class: "space" }, "·") : part));
    return html("span", { class: `token ${unseen ? "unseen" : kind}` }, ...content);
  }

  const KINDS = { digits: "the ten digits", numbers: "all numbers" };

  const isRule = () => state.chosen < RULES.length;

  /** The tokenizer's description and its inspection of the text; stored ones are there for four sentences only. */
  function look() {
    if (isRule()) {
      const rule = RULES[state.chosen];
      return [`${rule.name}: ${rule.about}`, inspect(rule, state.own || SENTENCES[state.sentence])];
    }
    const tokenizer = TOKENIZERS[state.chosen - RULES.length];
    const count = (n) => n.toLocaleString("en");
    const about =
      `${tokenizer.name} (${tokenizer.about}): ${count(tokenizer.number_tokens)} of its ` +
      `${count(tokenizer.vocab_size)} tokens are numbers.`;
    return [about, tokenizer.sentences[state.sentence]];
  }

  function update() {
    const [about, { tokens, rows, digits, chosen, verdict, notes }] = look();
    byId("tokens").replaceChildren(...tokens.map(chip));
    fillTable(
      byId("coverage"),
      ["Counted as numbers", "digits seen", "share", "choice"],
      rows.map((row) => [
        KINDS[row.tokens],
        `${row.seen} of ${digits}`,
        digits ? percent(row.seen / digits) : "–",
        row.tokens === chosen ? "chosen" : "",
      ]),
    );
    byId("recommendation").replaceChildren(about, ` ${verdict}`);
    byId("tokenizer-notes").replaceChildren(...notes.map((note) => html("li", {}, note)));
  }

  function fillFields() {
    choose(String(state.chosen));
    byId("sentence").value = String(state.sentence);
    byId("own-text").value = state.own;
  }

  /** Change the state, show it and store it. Stored tokenizers cannot split a text of one's own. */
  function change(changes, merge = "") {
    Object.assign(state, changes);
    if (state.own && !isRule()) Object.assign(state, "chosen" in changes ? { own: "" } : { chosen: 0 });
    fillFields();
    update();
    address.changed(merge);
  }

  const choose = radios(byId("tokenizer"), NAMES.map((name, i) => [String(i), name]), "0", (value) =>
    change({ chosen: Number(value) }),
  );
  SENTENCES.forEach((text, i) => byId("sentence").append(html("option", { value: i }, text)));
  byId("sentence").addEventListener("change", (event) => change({ sentence: Number(event.target.value), own: "" }));
  byId("own-text").addEventListener("input", (event) => change({ own: event.target.value.slice(0, LONGEST) }, "own"));
  byId("tokenizers-tools").append(address.copyButton("tokenizers"));
  address.part({
    write: () => ({
      tokenizer: state.chosen === 0 ? "" : String(state.chosen + 1),
      sentence: state.sentence === 0 ? "" : String(state.sentence + 1),
      own: state.own,
    }),
    read: ({ tokenizer = "1", sentence = "1", own = "" }) => {
      const [chosen, place] = [Number(tokenizer) - 1, Number(sentence) - 1];
      if (!(chosen in NAMES)) throw new Error(`“tokenizer=${tokenizer}” is not 1 to ${NAMES.length}.`);
      if (!(place in SENTENCES)) throw new Error(`“sentence=${sentence}” is not 1 to ${SENTENCES.length}.`);
      if (own && chosen >= RULES.length) throw new Error(`${NAMES[chosen]} cannot split a text of your own here.`);
      Object.assign(state, { chosen, sentence: place, own: own.slice(0, LONGEST) });
      fillFields();
      update();
    },
  });
  update();
})();
