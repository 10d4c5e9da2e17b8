/**
 * How tokenizers of today split a text before they look into their vocabulary.
 *
 * The patterns are those that cl100k_base (GPT-4), Llama 3 and Qwen 2 to 3 were published with; they differ in the part
 * on digits alone. The tests compare the pieces with those of the library tokenizers.
 */
"use strict";

const digitRules = (() => {
  const WORDS = "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+";
  const OTHERS = " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const patternOf = (digits) => new RegExp(`${WORDS}|${digits}|${OTHERS}`, "gu");

  const RULES = [
    {
      name: "GPT-4, Llama 3",
      pattern: patternOf("\\p{N}{1,3}"),
      about: "Groups of one to three digits, from the left; each is a token.",
      longest: 3,
    },
    { name: "Qwen", pattern: patternOf("\\p{N}"), about: "Each digit is a token.", longest: 1 },
  ];

  const isNumber = (piece) => /^[0-9]+$/.test(piece);
  const countDigits = (pieces) => pieces.join("").replace(/[^0-9]/g, "").length;

  /** The pieces of a text. */
  const split = (rule, text) => text.match(rule.pattern) ?? [];

  /** Numbers that are several tokens, of which not all have one length: the place of a digit then varies. */
  function shifted(pieces) {
    const runs = [[]];
    for (const piece of pieces) {
      if (isNumber(piece)) runs[runs.length - 1].push(piece);
      else runs.push([]);
    }
    return runs.filter((run) => run.length > 1 && run[0].length !== run[run.length - 1].length);
  }

  /**
   * What a number token loss sees of a text; the shape is that of a sentence in tokenizers.js.
   *
   * @param {Object} rule - one of `RULES`.
   * @param {string} text
   */
  function inspect(rule, text) {
    const pieces = split(rule, text);
    const numbers = pieces.filter(isNumber);
    const single = numbers.filter((piece) => piece.length === 1).length;
    const digits = countDigits(pieces);
    const digitLevel = rule.longest === 1;
    const notes = ["Only the rule on digits is shown: the vocabulary is not part of this page, so words stay whole."];
    if (!digitLevel) {
      for (const run of shifted(pieces).slice(0, 1))
        notes.push(`Groups are counted from the left: ${run.join("")} becomes ${run.join(" and ")}. A digit's place in its token depends on the length of the number.`);
    }
    return {
      text,
      tokens: pieces.map((piece) => [piece, !isNumber(piece) ? "" : piece.length === 1 ? "digit" : "number"]),
      digits,
      rows: [
        { tokens: "digits", seen: single },
        { tokens: "numbers", seen: numbers.join("").length },
      ],
      chosen: digitLevel ? "digits" : "numbers",
      verdict: digitLevel
        ? "Numbers are written digit by digit. Train with HLGauss.for_answers(answers); crps and ntl_was work."
        : "Numbers are written in groups of digits. Train with HLGauss.for_answers(answers), which knows the place of a token's digits.",
      notes,
    };
  }

  return { RULES, split, inspect };
})();
