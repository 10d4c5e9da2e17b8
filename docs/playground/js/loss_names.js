/** The losses of the page: their titles, what they do, and how the library calls them. */
"use strict";

const LOSS_NAMES = (() => {
  /** Name in losses.js, title, what it does, and the library's `criterion=`; the first five are shown first. */
  const rows = [
    ["cross_entropy", "Cross-entropy", "Minus the log of the right digit's probability. All wrong digits are equally wrong.", ""],
    ["hl_gauss", "HL-Gauss", "Cross-entropy with a Gaussian around the true number as the label. It takes the place of cross-entropy, so λ has no part. In numbers of several digits it knows place and carry.", 'HLGauss(SIGMA)'],
    ["ntl_was", "NTL-WAS", "The expected distance from the right digit: each probability times how far off it is.", '"ntl_was"'],
    ["crps", "CRPS", "NTL-WAS minus half the expected distance between two guesses, so being honest about doubt pays off.", '"crps"'],
    ["ntl_mse", "NTL-MSE", "Squared error of the expected digit. It is zero whenever the mean is right, by whatever digits.", '"ntl_mse"'],
    ["ntl_mae", "NTL-MAE", "Absolute error of the expected digit. Like NTL-MSE it only sees the mean.", '"ntl_mae"'],
    ["ntl_huber", "NTL-Huber", "Half the squared error of the expected digit up to 1, then the absolute error minus a half. Like NTL-MSE it only sees the mean.", '"ntl_huber"'],
    ["raft", "RAFT", "Squared error of the expectation over all tokens. Text counts as 0.", '"raft"'],
    ["gaussian_smoothing", "Gaussian CE", "Cross-entropy with a bell around the right digit as the label.", '"gaussian_smoothing"'],
    ["smoothed_wasserstein", "Smoothed NTL-WAS", "The work of moving the prediction to a bell around the right digit.", '"smoothed_wasserstein"'],
    ["dist2", "DIST2", "Divergence from a target that decays with the squared distance.", '"dist2"'],
    ["smmd", "SMMD", "A smooth distance between distributions; errors on neighbors count nearly as one.", '"smmd"'],
    ["del_loss", "DEL", "Binary cross-entropy of each digit's own logit, weighted with its probability.", '"del_loss"'],
    ["number_level", "NumberLevel", "Relative error of the expected number, from 0 to 1.", '"number_level"'],
    ["ntil", "NTIL", "NTL-WAS, plus the relative error and the magnitude of the likeliest number.", '"ntil"'],
  ];
  const all = rows.map(([name, title, about, given]) => ({
    name, title, about, criterionOf: (sigma) => given && `criterion=${given.replace("SIGMA", sigma)}`,
  }));
  const titleOf = (name) => all.find((loss) => loss.name === name).title;

  return { all, first: all.slice(0, 5), folded: all.slice(5), titleOf };
})();
