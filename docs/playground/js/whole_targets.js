/**
 * HL-Gauss: a Gaussian around the true number, split over its digits.
 *
 * The tests compare the targets with those of the library's `HLGauss`.
 */
"use strict";

const wholeTargets = (() => {
  const DIGITS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

  /** The error function; its series has positive terms only, so nothing cancels. */
  function erf(x) {
    if (Math.abs(x) > 6) return Math.sign(x);
    let term = x;
    let total = x;
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(total); n++) total += term *= (2 * x * x) / (2 * n + 1);
    return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * total;
  }

  /** A Gaussian's mass between two distances from its center. */
  const massBetween = (low, high, sigma) => (erf(high / (sigma * Math.SQRT2)) - erf(low / (sigma * Math.SQRT2))) / 2;

  /**
   * The cells of the ten digits that may stand at one place of a number, given the true digits before it.
   *
   * @typedef {Object} Cells
   * @property {string} before - the true digits before it, with the point.
   * @property {number} label - the true digit.
   * @property {number} start - the smallest number of the cell of 0.
   * @property {number} size - of a cell, in the number's unit.
   * @property {number} unit - of the number's last digit.
   * @property {boolean[]} fits - whether each digit may stand here: a first 0 only in numbers that are padded.
   */

  /**
   * @param {{whole: string, decimals: string}} number - from `numberLosses.parse`; its sign plays no part.
   * @param {boolean} padded - whether the first digit may be 0; it may in any case if the number itself begins with 0.
   * @returns {Cells[]} one for each digit.
   */
  function cellsOf({ whole, decimals }, padded = false) {
    const digits = whole + decimals;
    return [...digits].map((digit, i) => {
      const before = digits.slice(0, i);
      const size = 10 ** (whole.length - 1 - i);
      const skipsZero = i === 0 && whole.length > 1 && digit !== "0" && !padded;
      return {
        before: i > whole.length ? `${whole}.${before.slice(whole.length)}` : i === whole.length ? `${before}.` : before,
        label: Number(digit),
        start: Number(before) * 10 * size,
        size,
        unit: 10 ** -decimals.length,
        fits: DIGITS.map((v) => v > 0 || !skipsZero),
      };
    });
  }

  /** The target of a digit, `[10]`: the share of the Gaussian around a number in each cell. */
  function targetOf({ start, size, unit, fits }, number, sigma) {
    const masses = DIGITS.map((v) => {
      const low = start + v * size - unit / 2 - number;
      return fits[v] ? massBetween(low, low + size, sigma) : 0;
    });
    const total = masses.reduce((a, b) => a + b, 0);
    return masses.map((mass) => mass / total);
  }

  /** The targets of all digits of a number, `[digits][10]`. */
  function targetsOf(number, sigma, padded = false) {
    const value = Number(`${number.whole}.${number.decimals}`);
    return cellsOf(number, padded).map((cells) => targetOf(cells, value, sigma));
  }

  return { cellsOf, targetOf, targetsOf };
})();
