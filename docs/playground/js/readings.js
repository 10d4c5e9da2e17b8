/**
 * Numbers of three digits: their distribution as a tree of digits, and ways to read one number out of it.
 *
 * The tests compare the readings with `ntloss.reading`.
 */
"use strict";

const readings = (() => {
  const NUMBERS = 1000;

  /** Scale weights so that they sum to 1. */
  function normalize(weights) {
    const total = weights.reduce((a, b) => a + b, 0);
    return weights.map((w) => w / total);
  }

  /**
   * Probabilities of the digit that follows a prefix.
   *
   * @param {ArrayLike<number>} probs - `[1000]`, probability of each number.
   * @param {number[]} prefix - none, one or two digits.
   * @returns {number[]} `[10]`; equal shares if no number begins with the prefix.
   */
  function nextDigit(probs, prefix) {
    const size = NUMBERS / 10 ** (prefix.length + 1);
    const start = prefix.reduce((value, digit) => 10 * value + digit, 0) * 10 * size;
    const masses = Array.from({ length: 10 }, (_, digit) => {
      let mass = 0;
      for (let i = 0; i < size; i++) mass += probs[start + digit * size + i];
      return mass;
    });
    return masses.some((mass) => mass > 0) ? normalize(masses) : new Array(10).fill(0.1);
  }

  /** Follow `choose(probabilities, level)` down the tree; returns the three digits. */
  function walk(probs, choose) {
    const digits = [];
    for (let level = 0; level < 3; level++) digits.push(choose(nextDigit(probs, digits), level));
    return digits;
  }

  const toNumber = (digits) => digits.reduce((value, digit) => 10 * value + digit, 0);

  /** The digits of greedy decoding: the likeliest at each step. */
  const greedyDigits = (probs) => walk(probs, (p) => p.indexOf(Math.max(...p)));

  /**
   * One step of the walk to a quantile: the digit where the cumulated probability crosses what remains of it.
   *
   * @param {number[]} probs - `[10]`, of the next digit.
   * @param {number} quantile - what remains of the quantile, between 0 and 1.
   * @returns {{digit: number, before: number, share: number, rest: number}} the digit, the probability of smaller
   *   digits, its own, and what remains of the quantile within it.
   */
  function quantileStep(probs, quantile) {
    let before = 0;
    let digit = 0;
    while (digit < 9 && (before + probs[digit] < quantile || probs[digit] === 0)) before += probs[digit++];
    const share = probs[digit];
    const rest = share > 0 ? Math.min(Math.max((quantile - before) / share, 0), 1) : 0;
    return { digit, before, share, rest };
  }

  /** The three steps of the walk to a quantile. */
  function quantileWalk(probs, quantile) {
    const steps = [];
    walk(probs, (p) => {
      const step = quantileStep(p, steps.length ? steps[steps.length - 1].rest : quantile);
      steps.push({ ...step, probs: p, quantile: steps.length ? steps[steps.length - 1].rest : quantile });
      return step.digit;
    });
    return steps;
  }

  const quantile = (probs, q) => toNumber(quantileWalk(probs, q).map((step) => step.digit));

  /** The expected number. */
  function mean(probs) {
    let total = 0;
    for (let i = 0; i < probs.length; i++) total += i * probs[i];
    return total;
  }

  /** The smallest number whose cumulated probability reaches q; for distributions that are no tree. */
  function quantileOf(probs, q) {
    let total = 0;
    for (let i = 0; i < probs.length; i++) {
      total += probs[i];
      if (total >= q) return i;
    }
    return probs.length - 1;
  }

  /** Expected distance between a number and one drawn from the distribution. */
  function expectedError(probs, number) {
    let total = 0;
    for (let i = 0; i < probs.length; i++) total += Math.abs(i - number) * probs[i];
    return total;
  }

  /**
   * The distribution of a model that sometimes writes a fourth digit, any of the ten.
   *
   * @param {ArrayLike<number>} probs - `[1000]`.
   * @param {number} share - how often it does.
   * @returns {Float64Array} `[10000]`.
   */
  function withExtraDigit(probs, share) {
    const longer = new Float64Array(10 * NUMBERS);
    for (let i = 0; i < NUMBERS; i++) {
      longer[i] += (1 - share) * probs[i];
      for (let digit = 0; digit < 10; digit++) longer[10 * i + digit] += (share * probs[i]) / 10;
    }
    return longer;
  }

  /**
   * All readings of a distribution over three digits.
   *
   * @param {ArrayLike<number>} probs - `[1000]`.
   * @returns {{greedy: number, median: number, mean: number, low: number, high: number}} low and high enclose 90 %.
   */
  function readAll(probs) {
    return {
      greedy: toNumber(greedyDigits(probs)),
      median: quantile(probs, 0.5),
      mean: mean(probs),
      low: quantile(probs, 0.05),
      high: quantile(probs, 0.95),
    };
  }

  return {
    NUMBERS,
    normalize,
    nextDigit,
    toNumber,
    greedyDigits,
    quantileStep,
    quantileWalk,
    quantile,
    quantileOf,
    mean,
    expectedError,
    withExtraDigit,
    readAll,
  };
})();
