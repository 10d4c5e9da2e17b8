/** The losses of the page: their titles, what they do, and how the library calls them. */
"use strict";

const LOSS_NAMES = (() => {
  /** What the losses of losses.js do, in the order of the page; the first five are shown first. */
  const ABOUT = {
    cross_entropy: "Minus the log of the right digit's probability. All wrong digits are equally wrong.",
    hl_gauss: "Cross-entropy with a Gaussian around the true number as the label. It takes the place of cross-entropy, so λ has no part. In numbers of several digits it knows place and carry.",
    ntl_was: "The expected distance from the right digit: each probability times how far off it is.",
    crps: "NTL-WAS minus half the expected distance between two guesses, so being honest about doubt pays off.",
    ntl_mse: "Squared error of the expected digit. It is zero whenever the mean is right, by whatever digits.",
    ntl_mae: "Absolute error of the expected digit. Like NTL-MSE it only sees the mean.",
    ntl_huber: "Half the squared error of the expected digit up to 1, then the absolute error minus a half. Like NTL-MSE it only sees the mean.",
    raft: "Squared error of the expectation over all tokens. Text counts as 0.",
    gaussian_smoothing: "Cross-entropy with a bell around the right digit as the label.",
    smoothed_wasserstein: "The work of moving the prediction to a bell around the right digit.",
    dist2: "Divergence from a target that decays with the squared distance.",
    smmd: "A smooth distance between distributions; errors on neighbors count nearly as one.",
    del_loss: "Binary cross-entropy of each digit's own logit, weighted with its probability.",
    number_level: "Relative error of the expected number, from 0 to 1.",
    ntil: "NTL-WAS, plus the relative error and the magnitude of the likeliest number.",
  };
  /** The title in the library (data/criteria.js), with a capital. */
  const titleOf = (name) => (CRITERIA[name] ?? "Cross-entropy").replace(/^./, (letter) => letter.toUpperCase());
  const criterionOf = (name, sigma) => {
    if (!(name in CRITERIA)) return "";
    return `criterion=${name === "hl_gauss" ? `HLGauss(${sigma})` : `"${name}"`}`;
  };
  const all = Object.entries(ABOUT).map(([name, about]) => ({
    name, title: titleOf(name), about, criterionOf: (sigma) => criterionOf(name, sigma),
  }));

  return { all, first: all.slice(0, 5), folded: all.slice(5), titleOf };
})();
