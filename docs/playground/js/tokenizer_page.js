/** What tokenizers do to numbers, from `ntloss inspect`. */
"use strict";

(() => {
  const { html, byId, radios, fillTable, percent } = drawing;
  let chosen = 0;

  /** A token as a chip; spaces are shown as dots. */
  function chip([piece, kind]) {
    const unseen = !kind && /\d/.test(piece);
    const pieces = piece.split(/( )/).filter((part) => part !== "");
    const content = pieces.map((part) => (part === " " ? html("span", { class: "space" }, "·") : part));
    return html("span", { class: `token ${unseen ? "unseen" : kind}` }, ...content);
  }

  const SETTINGS = {
    "true,false": "single digits (NTLoss)",
    "true,true": "… and after spaces",
    "false,false": "any length",
    "false,true": "… and after spaces",
  };

  function update() {
    const tokenizer = TOKENIZERS[chosen];
    const { tokens, rows, digits, recommendation, notes } = tokenizer.sentences[Number(byId("sentence").value)];
    byId("tokens").replaceChildren(...tokens.map(chip));
    const isBest = (row) =>
      recommendation && row.digit_level === recommendation.digit_level && row.space_prefixed === recommendation.space_prefixed;
    fillTable(
      byId("coverage"),
      ["Counted as numbers", "digits seen", "share", ""],
      rows.map((row) => [
        SETTINGS[`${row.digit_level},${row.space_prefixed}`],
        `${row.seen} of ${digits}`,
        percent(row.seen / digits),
        isBest(row) ? "recommended" : "",
      ]),
    );
    const count = (n) => n.toLocaleString("en");
    const about =
      `${tokenizer.name} (${tokenizer.about}): ${count(tokenizer.number_tokens)} of its ` +
      `${count(tokenizer.vocab_size)} tokens are numbers.`;
    const advice = recommendation ? [" Use ", html("code", {}, recommendation.code)] : [];
    byId("recommendation").replaceChildren(about, ...advice);
    const remarks = recommendation ? [recommendation.reason, ...notes] : notes;
    byId("tokenizer-notes").replaceChildren(...remarks.map((remark) => html("li", {}, remark)));
  }

  radios(byId("tokenizer"), TOKENIZERS.map(({ name }, i) => [String(i), name]), "0", (value) => {
    chosen = Number(value);
    update();
  });
  TOKENIZERS[0].sentences.forEach(({ text }, i) => byId("sentence").append(html("option", { value: i }, text)));
  byId("sentence").addEventListener("change", update);
  update();
})();
