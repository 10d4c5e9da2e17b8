/** What there is to notice, computed from the state of the section on losses. */
"use strict";

const captions = (() => {
  const { percent, short } = drawing;
  const { titleOf } = LOSS_NAMES;
  const STILL = 0.005; // a push below this share of the largest one is no push
  const NEVER = -40; // the logit of a token without probability

  /** A loss's title within a sentence. */
  const inText = (name) => titleOf(name).replace(/^(Cross|Relative|Magnitude)/, (word) => word.toLowerCase());
  const sum = (row) => row.reduce((a, b) => a + b, 0);
  const indexOfLargest = (row) => row.indexOf(Math.max(...row));
  const nameOf = (index) => (index === losses.TEXT ? "text" : String(index));

  /** How a loss on labels in doubt compares honesty with certainty. */
  function inDoubt({ logits, loss }) {
    const title = titleOf(loss);
    const digit = indexOfLargest(lossState.UNCERTAIN);
    const cost = (weights) => lossState.evaluate(loss, weights && lossState.toLogits(weights)).loss;
    const [now, honest, sure] = [
      losses.evaluate(loss, logits, lossState.UNCERTAIN, lossState.get().sigma).loss,
      cost([...lossState.UNCERTAIN, 0]),
      cost([...lossState.mostlyOn(digit, 0.99), 0]),
    ];
    const verdict =
      Math.abs(honest - sure) < 0.0005 ? "does not tell them apart" : honest < sure ? "rewards honesty" : "rewards being too sure";
    return (
      `The right digit varies (dashed). ${title} charges ${short(now)} here, ${short(honest)} for an honest prediction ` +
      `and ${short(sure)} for 99 % on ${digit}: it ${verdict}.`
    );
  }

  /** Which losses see probability on text. */
  function onText({ logits, loss }, probs) {
    const without = lossState.evaluate(loss, [...logits.slice(0, 10), NEVER]).loss;
    const now = lossState.evaluate(loss).loss;
    const start = `${percent(probs[losses.TEXT])} is on text. ${titleOf(loss)}`;
    if (Math.abs(now - without) >= 0.0005)
      return `${start} sees it: it charges ${short(now)}, and ${short(without)} without the text.`;
    return (
      `${start} looks at digits only and charges ${short(now)}, with or without the text; cross-entropy charges ` +
      `${short(lossState.evaluate("cross_entropy").loss)}. So number losses are added to cross-entropy.`
    );
  }

  /** Cross-entropy, the chosen loss, and beside HL-Gauss what NTL-WAS charges for the distance alone. */
  const compared = (loss) => [
    "cross_entropy",
    ...(loss === "cross_entropy" ? [] : [loss]),
    ...(lossState.isInstead() ? ["ntl_was"] : []),
  ];

  /** What losses would charge if the likeliest digit were another. */
  function nearAndFar({ logits, target, loss }) {
    const said = indexOfLargest(logits.slice(0, 10));
    const beside = target > 0 ? target - 1 : target + 1;
    const farthest = target < 5 ? 9 : 0;
    const other = Math.abs(said - target) > 1 ? beside : farthest;
    const swapped = [...logits];
    [swapped[said], swapped[other]] = [logits[other], logits[said]];
    const changes = compared(loss).map((name) => {
      const costs = [lossState.evaluate(name), lossState.evaluate(name, swapped)];
      const [now, then] = costs.map((result) => short(result.loss));
      return `${inText(name)} ${now === then ? `would stay at ${now}` : `would go from ${now} to ${then}`}`;
    });
    return `The model says ${said}, the right digit is ${target}. If it said ${other} instead, ${changes.slice(0, -1).join(", ")}, and ${changes.at(-1)}.`;
  }

  /** What is worth noticing about the prediction. */
  function prediction() {
    const state = lossState.get();
    const probs = lossState.probs();
    const { target } = state;
    if (target === null) return inDoubt(state);
    if (Math.max(...probs) < 1.05 * Math.min(...probs)) return "All tokens are about equally likely: the model has no idea.";
    if (probs[losses.TEXT] >= 0.3) return onText(state, probs);
    const mass = sum(probs.slice(0, 10));
    const mean = sum(losses.VALUES.map((v) => (v * probs[v]) / mass));
    if (Math.abs(mean - target) < 0.05 && probs[target] < 0.3)
      return (
        `The mean of the digits is ${mean.toFixed(2)}, yet only ${percent(probs[target])} is on ${target}. NTL-MSE charges ` +
        `${short(lossState.evaluate("ntl_mse").loss)}: it sees the mean alone. NTL-WAS charges ` +
        `${short(lossState.evaluate("ntl_was").loss)}.`
      );
    if (indexOfLargest(probs.slice(0, 10)) !== target) return nearAndFar(state);
    const costs = ["cross_entropy", "ntl_was", "hl_gauss"].map((name) => short(lossState.evaluate(name).loss));
    return (
      `The likeliest digit is right, with ${percent(probs[target])}. Cross-entropy charges ${costs[0]} for the rest, ` +
      `wherever it lies; NTL-WAS ${costs[1]}, by distance; HL-Gauss ${costs[2]}, since it wants its neighbors, too.`
    );
  }

  /** Where a step of training pushes the tokens; `pushes` are shares of the largest push. */
  function arrows(pushes) {
    const up = Math.max(...pushes);
    const down = Math.min(...pushes);
    if (Math.max(up, -down) < STILL) return "No arrows: a step of training would change nothing.";
    /** The tokens that get the largest push in a direction. */
    const most = (limit, word) => {
      const alike = pushes.flatMap((push, i) => (Math.abs(push - limit) < 0.01 * Math.abs(limit) ? [nameOf(i)] : []));
      if (alike.length > 3) return `${alike.length} tokens ${word} alike`;
      return `${alike.join(" and ")} ${word} most`;
    };
    return `A step of training pushes ${most(up, "up")}, and ${most(down, "down")}.`;
  }

  return { prediction, arrows, STILL, nameOf };
})();
