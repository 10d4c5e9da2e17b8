/**
 * Losses of one position: ten digits, and everything else as one text token.
 *
 * All functions take logits, `[11]`: those of the digits 0 to 9, then that of text. The tests compare every loss and
 * gradient with the Python library.
 */
"use strict";

const losses = (() => {
  const VALUES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
  const TEXT = 10;
  const sum = (row) => row.reduce((a, b) => a + b, 0);
  const dot = (a, b) => a.reduce((total, x, i) => total + x * b[i], 0);

  /** log(sum(exp(row))), without overflow. */
  function logsumexp(row) {
    const largest = Math.max(...row);
    return largest + Math.log(sum(row.map((z) => Math.exp(z - largest))));
  }

  /** Probabilities of a row of logits. */
  function softmax(row) {
    const normalizer = logsumexp(row);
    return row.map((z) => Math.exp(z - normalizer));
  }

  /** log(1 + exp(z)), without overflow. */
  const softplus = (z) => Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z)));

  const sigmoid = (z) => 1 / (1 + Math.exp(-z));

  /**
   * What a criterion sees of the logits.
   *
   * @typedef {Object} Readout
   * @property {number[]} logits - `[10]`, logits of the digits.
   * @property {number[]} logProbs - `[10]`, log-probabilities among the digits.
   * @property {number[]} probs - `[10]`, probabilities among the digits.
   * @property {number} logMass - log of the probability of all digits together.
   */

  /** @returns {Readout} */
  function read(logits) {
    const digits = logits.slice(0, 10);
    const normalizer = logsumexp(digits);
    const logProbs = digits.map((z) => z - normalizer);
    return { logits: digits, logProbs, probs: logProbs.map(Math.exp), logMass: normalizer - logsumexp(logits) };
  }

  /** Cumulative probabilities `[9]`, without the last, which is 1. */
  function cumulate(probs) {
    let total = 0;
    return probs.slice(0, 9).map((p) => (total += p));
  }

  /** Sums from each index to the end: turns a gradient by cumulative probabilities into one by probabilities. */
  function sumsBehind(byCumulative) {
    const sums = new Array(10).fill(0);
    for (let j = 8; j >= 0; j--) sums[j] = sums[j + 1] + byCumulative[j];
    return sums;
  }

  // A criterion returns its loss and gradients by some of: probs, logProbs, logMass, and the digits' logits.

  const crossEntropy = (x, target) => targetsEntropy(x, VALUES.map((v) => (v === target ? 1 : 0)));

  /** Cross-entropy with a distribution over digits as the label. */
  function targetsEntropy(x, targets) {
    return { loss: -dot(targets, x.logProbs) - x.logMass, byLogProbs: targets.map((q) => -q), byLogMass: -1 };
  }

  function wasserstein(x, target) {
    const cost = VALUES.map((v) => Math.abs(v - target));
    return { loss: dot(x.probs, cost), byProbs: cost };
  }

  function crps(x, target) {
    const apart = cumulate(x.probs).map((F, j) => F - (j >= target ? 1 : 0));
    return { loss: dot(apart, apart), byProbs: sumsBehind(apart.map((d) => 2 * d)) };
  }

  /** A regression loss of the expected digit; `power` 2 is the squared error, 1 the absolute one. */
  function expectedValue(x, target, power) {
    const error = dot(x.probs, VALUES) - target;
    const slope = power === 2 ? 2 * error : Math.sign(error);
    return { loss: Math.abs(error) ** power, byProbs: VALUES.map((v) => slope * v) };
  }

  /** Squared up to an error of 1, and absolute beyond it. */
  function huber(x, target) {
    const error = dot(x.probs, VALUES) - target;
    const slope = Math.max(-1, Math.min(1, error));
    const loss = slope * error - slope ** 2 / 2;
    return { loss, byProbs: VALUES.map((v) => slope * v) };
  }

  /** Squared error of the expectation over the whole vocabulary, in which text counts as 0. */
  function expectedValueOverVocabulary(x, target) {
    const mass = Math.exp(x.logMass);
    const expected = mass * dot(x.probs, VALUES);
    const slope = 2 * (expected - target);
    return {
      loss: (expected - target) ** 2,
      byProbs: VALUES.map((v) => slope * mass * v),
      byLogMass: slope * expected,
    };
  }

  /** A bell around the target: probabilities proportional to exp(-distance² / width). */
  const bell = (target, width) => softmax(VALUES.map((v) => -((v - target) ** 2) / width));

  function smoothedWasserstein(x, target) {
    const wanted = cumulate(bell(target, 2));
    const apart = cumulate(x.probs).map((F, j) => F - wanted[j]);
    return { loss: sum(apart.map(Math.abs)), byProbs: sumsBehind(apart.map(Math.sign)) };
  }

  function dist2(x, target) {
    const wanted = bell(target, 1);
    const entropy = -sum(wanted.map((q) => q * Math.log(q)));
    return { loss: -dot(wanted, x.logProbs) - entropy, byLogProbs: wanted.map((q) => -q) };
  }

  const SMMD_MATRIX = (() => {
    const kernel = VALUES.map((a) => VALUES.map((b) => Math.exp(-((a - b) ** 2) / 8)));
    const degrees = kernel.map(sum);
    const alpha = 10 / (2 * sum(degrees));
    return kernel.map((row, i) => row.map((k, j) => k + alpha * ((i === j ? degrees[i] : 0) - k)));
  })();

  function smmd(x, target) {
    const error = x.probs.map((p, j) => p - (j === target ? 1 : 0));
    const product = SMMD_MATRIX.map((row) => dot(row, error));
    return { loss: dot(error, product), byProbs: product.map((y) => 2 * y) };
  }

  function digitEntropy(x, target) {
    const entropies = x.logits.map((z, j) => softplus(j === target ? -z : z));
    const slopes = x.logits.map((z, j) => sigmoid(z) - (j === target ? 1 : 0));
    return {
      loss: 0.001 * dot(x.probs, entropies),
      byProbs: entropies.map((e) => 0.001 * e),
      byLogits: slopes.map((slope, j) => 0.001 * x.probs[j] * slope),
    };
  }

  // Losses on whole numbers, for a number of one digit.

  const hlGauss = (x, target, sigma) =>
    targetsEntropy(x, wholeTargets.targetsOf({ whole: String(target), decimals: "" }, sigma)[0]);

  function numberLevel(x, target) {
    const epsilon = 2 ** -23;
    const expected = dot(x.probs, VALUES);
    const total = expected + target + epsilon;
    const slope = (Math.sign(expected - target) * (2 * target + epsilon)) / total ** 2;
    return { loss: Math.abs(expected - target) / total, byProbs: VALUES.map((v) => slope * v) };
  }

  /** log(1 + likeliest digit) - log(1 + target), with the gradient of a softmax at temperature 0.1. */
  function logRatio(x, target) {
    const soft = softmax(x.logProbs.map((p) => p / 0.1));
    const digit = x.logProbs.indexOf(Math.max(...x.logProbs));
    const mean = dot(soft, VALUES);
    const byLogProbs = soft.map((p, j) => (p * (VALUES[j] - mean)) / 0.1 / (digit + 1));
    return { ratio: Math.log1p(digit) - Math.log1p(target), byLogProbs };
  }

  function magnitude(x, target) {
    const { ratio, byLogProbs } = logRatio(x, target);
    return { loss: Math.abs(ratio), byLogProbs: byLogProbs.map((g) => Math.sign(ratio) * g) };
  }

  function relativeError(x, target) {
    const { loss, byLogProbs } = magnitude(x, target);
    return { loss: -Math.expm1(-loss), byLogProbs: byLogProbs.map((g) => Math.exp(-loss) * g) };
  }

  function ntil(x, target) {
    const parts = [wasserstein(x, target), relativeError(x, target), magnitude(x, target)];
    const byLogProbs = parts[1].byLogProbs.map((g, j) => 0.2 * g + 0.2 * parts[2].byLogProbs[j]);
    const loss = parts[0].loss + 0.2 * parts[1].loss + 0.2 * parts[2].loss;
    return { loss, byProbs: parts[0].byProbs, byLogProbs };
  }

  const FORMULAS = {
    cross_entropy: crossEntropy,
    ntl_was: wasserstein,
    crps,
    ntl_mse: (x, target) => expectedValue(x, target, 2),
    ntl_mae: (x, target) => expectedValue(x, target, 1),
    ntl_huber: huber,
    raft: expectedValueOverVocabulary,
    gaussian_smoothing: (x, target) => targetsEntropy(x, bell(target, 2)),
    smoothed_wasserstein: smoothedWasserstein,
    dist2,
    smmd,
    del_loss: digitEntropy,
    hl_gauss: hlGauss,
    number_level: numberLevel,
    ntil,
  };

  /** The gradient by all eleven logits, from a criterion's gradients. */
  function gradient(x, result) {
    const { byProbs, byLogProbs, byLogMass = 0, byLogits } = result;
    const slopes = x.probs.map((p, j) => (byProbs ? p * byProbs[j] : 0) + (byLogProbs ? byLogProbs[j] : 0));
    const total = sum(slopes);
    const mass = Math.exp(x.logMass);
    const byDigits = x.probs.map(
      (p, j) => slopes[j] - p * total + byLogMass * p * (1 - mass) + (byLogits ? byLogits[j] : 0),
    );
    return [...byDigits, -byLogMass * (1 - mass)];
  }

  /**
   * A loss and its gradient, averaged over the label's distribution.
   *
   * @param {string} name - one of `names`.
   * @param {number[]} logits - `[11]`.
   * @param {number[]} labels - `[10]`, probability of each digit to be the label; a known label has one 1.
   * @param {number} sigma - of HL-Gauss; others ignore it.
   * @returns {{loss: number, gradient: number[]}} the gradient is `[11]`.
   */
  function evaluate(name, logits, labels, sigma = 1) {
    const x = read(logits);
    const result = { loss: 0, gradient: new Array(11).fill(0) };
    labels.forEach((share, target) => {
      if (share === 0) return;
      const ofTarget = FORMULAS[name](x, target, sigma);
      result.loss += share * ofTarget.loss;
      gradient(x, ofTarget).forEach((g, j) => (result.gradient[j] += share * g));
    });
    return result;
  }

  /** Cross-entropy with a distribution over the digits as the label; its loss alone. */
  const ofTargets = (logits, targets) => targetsEntropy(read(logits), targets).loss;

  return { names: Object.keys(FORMULAS), evaluate, ofTargets, bellAround: (target) => bell(target, 2), softmax, VALUES, TEXT };
})();
