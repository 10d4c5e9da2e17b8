/**
 * Losses of a number of several tokens: each digit, and the whole number.
 *
 * One token per character, and one that ends the answer. The tests compare every loss with the Python library.
 */
"use strict";

const numberLosses = (() => {
  const END = "end";
  const TOKENS = [..."0123456789.-+", END];
  const MOST_DIGITS = 6;
  const MOST_DECIMALS = 4;
  const PLACE_BASE = 1.2; // of NTIL
  const EPSILON = 2 ** -24; // half of the library's, in units of the last digit

  // Of what the library's `parse_number` reads: thousands in groups, a decimal point, and an exponent.
  const NUMBER = /^([-+−–]?)(?:([1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.(\d+)|\.(?=[eE]))?|\.(\d+))(?:[eE]([-+]?\d+))?\.?$/;

  const isDigit = (token) => /^\d$/.test(token);

  /**
   * Read a number that a visitor typed, as the library reads numbers.
   *
   * @param {string} text
   * @returns {{sign: string, whole: string, decimals: string}}
   * @throws {Error} with a sentence that says what is wrong.
   */
  function parse(text) {
    const plain = text.trim();
    const found = plain.match(NUMBER);
    if (plain === "") throw new Error("Type a number.");
    if (!found && plain.includes(",")) throw new Error("Write 1,234.5: a comma stands between thousands, and a point before decimals.");
    if (!found) throw new Error(`“${plain}” is not a number such as 405, 3.14, −7 or 1e5.`);
    const [, sign, grouped, afterPoint, leading, exponent = "0"] = found;
    const fraction = afterPoint ?? leading ?? "";
    const { whole, decimals } = movePoint((grouped ?? "0").replace(/,/g, ""), fraction, Number(exponent));
    if (whole.length > MOST_DIGITS) throw new Error(`At most ${MOST_DIGITS} digits before the point.`);
    if (decimals.length > MOST_DECIMALS) throw new Error(`At most ${MOST_DECIMALS} decimals.`);
    return { sign: /[-−–]/.test(sign) && /[1-9]/.test(whole + decimals) ? "-" : "", whole, decimals };
  }

  /** The digits of a number times a power of ten. */
  function movePoint(whole, decimals, power) {
    const moved = Math.max(Math.min(power, MOST_DIGITS + decimals.length), -MOST_DECIMALS - whole.length);
    if (moved === 0) return { whole, decimals };
    const digits = "0".repeat(Math.max(-moved, 0)) + whole + decimals.padEnd(moved, "0");
    const point = whole.length + Math.max(-moved, 0) + moved;
    return { whole: digits.slice(0, point).replace(/^0+(?=\d)/, ""), decimals: digits.slice(point) };
  }

  /** A number in plain digits. */
  const textOf = ({ sign, whole, decimals }) => `${sign}${whole}${decimals && "."}${decimals}`;

  /** What to say beside a number that is not typed in plain digits: the number in them. */
  function spell(text) {
    const plain = textOf(parse(text));
    return plain === text.trim().replace("−", "-") ? "" : `= ${plain.replace("-", "−")}`;
  }

  /** A number as tokens; with a width, as the library's `NumberFormat` writes it. */
  function tokensOf({ sign, whole, decimals }, width) {
    if (!width) return [...sign, ...whole, ...(decimals ? `.${decimals}` : "")];
    const fraction = width.decimals ? `.${decimals.padEnd(width.decimals, "0")}` : "";
    return [...(width.signed ? sign || "+" : ""), ...whole.padStart(width.digits, "0"), ...fraction];
  }

  /** The smallest width that fits two numbers. */
  const widthOf = (one, other) => ({
    signed: Boolean(one.sign || other.sign),
    digits: Math.max(one.whole.length, other.whole.length),
    decimals: Math.max(one.decimals.length, other.decimals.length),
  });

  /**
   * The tokens of the truth, and what the model says at the place of each.
   *
   * @param {Object} truth - from `parse`.
   * @param {Object} said - from `parse`.
   * @param {boolean} padded - whether both are written with one width; otherwise as typed, with the token that ends.
   * @returns {{labels: string[], said: string[], rest: string[]}} `rest`: what is said after the truth's end, which
   *   no loss sees.
   */
  function align(truth, said, padded) {
    const width = padded && widthOf(truth, said);
    const end = padded ? [] : [END];
    const labels = [...tokensOf(truth, width), ...end];
    const spoken = [...tokensOf(said, width), ...end];
    return {
      labels,
      said: labels.map((_, i) => (i < spoken.length ? spoken[i] : END)),
      rest: spoken.slice(labels.length),
    };
  }

  /** Probability of a token, where the model is sure of another or of this. */
  const chanceOf = (token, said, sure) => (token === said ? sure : (1 - sure) / (TOKENS.length - 1));

  /** Logits of the digits and of all text together, as `losses` takes them. */
  function logitsOf(said, sure) {
    const chances = TOKENS.map((token) => chanceOf(token, said, sure));
    const text = chances.slice(10).reduce((a, b) => a + b, 0);
    return [...chances.slice(0, 10), text].map(Math.log);
  }

  /** Digits of the truth with their places and what the model predicts: the mean digit and the likeliest. */
  function readDigits(labels, said, sure) {
    const point = labels.indexOf(".");
    const inside = labels.map((label, i) => [label, i]).filter(([label]) => isDigit(label));
    const whole = point < 0 ? inside.length : inside.filter(([, i]) => i < point).length;
    return inside.map(([label, i], k) => {
      const digits = losses.softmax(logitsOf(said[i], sure).slice(0, 10));
      return {
        index: i,
        label: Number(label),
        place: whole - 1 - k,
        behind: inside.length - 1 - k,
        mean: digits.reduce((total, p, digit) => total + p * digit, 0),
        likeliest: digits.indexOf(Math.max(...digits)),
      };
    });
  }

  /** log(predicted + addend) - log(true + addend) of the number made of digits. */
  function logRatio(digits, predicted, power, addend) {
    const total = (digitOf) => digits.reduce((sum, digit) => sum + digitOf(digit) * 10 ** power(digit), addend);
    return Math.log(total(predicted)) - Math.log(total((digit) => digit.label));
  }

  const mean = (row) => row.reduce((a, b) => a + b, 0) / row.length;

  /**
   * Every loss of a number.
   *
   * @param {string[]} labels - tokens of the truth, from `align`.
   * @param {string[]} said - what the model says at each.
   * @param {number} sure - the probability of what it says; other tokens share the rest.
   * @param {{sigma: number, padded: boolean}} options - of HL-Gauss; padded numbers may begin with 0.
   * @returns {Object<string, {tokens: Array<?number>, whole: number}>} by name; null where a loss does not look.
   */
  function evaluate(labels, said, sure, { sigma, padded }) {
    const digits = readDigits(labels, said, sure);
    const none = labels.map(() => null);
    const atDigits = (valueOf) => {
      const tokens = [...none];
      digits.forEach((digit) => (tokens[digit.index] = valueOf(digit)));
      return { tokens, whole: mean(digits.map(valueOf)) };
    };
    const found = {};
    for (const name of losses.names) {
      found[name] = atDigits(({ index, label }) => {
        const target = losses.VALUES.map((v) => (v === label ? 1 : 0));
        return losses.evaluate(name, logitsOf(said[index], sure), target).loss;
      });
    }
    const [whole, decimals = ""] = labels.filter((label) => isDigit(label) || label === ".").join("").split(".");
    const targets = wholeTargets.targetsOf({ whole, decimals }, sigma, padded);
    found.hl_gauss = atDigits(({ index, place }) =>
      losses.ofTargets(logitsOf(said[index], sure), targets[whole.length - 1 - place]),
    );
    const entropies = labels.map((label, i) => -Math.log(chanceOf(label, said[i], sure)));
    found.cross_entropy = { tokens: entropies, whole: mean(entropies) };
    const distances = found.ntl_was.tokens;
    found.place_weighted = atDigits(({ index, behind }) => PLACE_BASE ** behind * distances[index]);
    const level = logRatio(digits, (digit) => digit.mean, (digit) => digit.behind, EPSILON);
    const size = Math.abs(logRatio(digits, (digit) => digit.likeliest, (digit) => digit.place, 1));
    const ofNumber = (whole) => ({ tokens: none, whole });
    found.number_level = ofNumber(Math.tanh(Math.abs(level) / 2));
    found.ntil = ofNumber(found.place_weighted.whole - 0.2 * Math.expm1(-size) + 0.2 * size);
    return found;
  }

  return { TOKENS, END, isDigit, parse, textOf, spell, align, evaluate };
})();
