/** The two figures beside the loss playground: moving the bars, and cost by where the probability lies. */
"use strict";

(() => {
  const { svg, text, byId, show, linePath, axis, radios, onResize } = drawing;
  const SURE = 0.99;

  // The work of moving the bars.

  /** An arc from a digit to the right one, as thick as the probability that it carries. */
  function arc(from, to, base, share) {
    const height = Math.min(26 + 0.34 * Math.abs(to - from), 120);
    const path = `M${from} ${base} C${from} ${base - height}, ${to} ${base - height}, ${to} ${base}`;
    return svg("path", { d: path, class: "arc", "stroke-width": Math.max(12 * share, 0.75) });
  }

  function drawSchematic(width) {
    const shares = losses.softmax(lossState.probs().slice(0, 10).map(Math.log));
    const target = lossState.get().target;
    const slot = width / 10;
    const center = (digit) => slot * (digit + 0.5);
    const base = 200;
    const parts = [svg("line", { x1: 0, x2: width, y1: base, y2: base, class: "rule" })];
    shares.forEach((share, digit) => {
      const height = 100 * share;
      const kind = digit === target ? "block right" : "block";
      parts.push(
        svg("rect", { x: center(digit) - slot * 0.32, width: slot * 0.64, y: base - height, height, class: kind }),
        text(center(digit), base + 18, String(digit), { "text-anchor": "middle", class: digit === target ? "strong" : "" }),
      );
      if (target === null) return;
      const distance = Math.abs(digit - target);
      const cost = { "text-anchor": "middle", class: "muted" };
      parts.push(text(center(digit), base + 38, distance === 0 ? "free" : `×${distance}`, cost));
      if (digit !== target && share > 0.004) parts.unshift(arc(center(digit), center(target), base - height, share));
    });
    return parts;
  }

  function describeSchematic() {
    const shares = losses.softmax(lossState.probs().slice(0, 10).map(Math.log));
    const target = lossState.get().target;
    if (target === null) return "With labels in doubt there is no single digit to move to: choose a right digit above.";
    const parts = shares
      .map((share, digit) => ({ share, distance: Math.abs(digit - target) }))
      .filter(({ share, distance }) => distance > 0 && share >= 0.015)
      .map(({ share, distance }) => `${share.toFixed(2)}·${distance}`);
    const total = shares.reduce((sum, share, digit) => sum + share * Math.abs(digit - target), 0);
    const terms = parts.length ? `${parts.join(" + ")}${parts.length < 9 ? " + …" : ""} = ` : "";
    return `Carry every bar to ${target}; each costs its height times the way: ${terms}${total.toFixed(2)}.`;
  }

  function updateSchematic() {
    const label = "Arcs from the predicted digits to the right one; each costs its probability times the distance";
    show(byId("schematic"), 246, label, drawSchematic);
    byId("schematic-note").textContent = describeSchematic();
  }

  // Cost by where the probability lies.

  const CURVES = [
    ["cross_entropy", "curve-a"],
    ["ntl_mse", "curve-b"],
    ["ntl_was", "curve-c"],
    ["crps", "curve-d"],
    ["hl_gauss", "curve-e"],
  ].map(([name, style]) => [name, LOSS_NAMES.titleOf(name), style]);
  let kind = "one";

  /** Probabilities with nearly all on some digits, equally. */
  function concentrated(digits) {
    const rest = (1 - SURE) / (10 - digits.length);
    return losses.VALUES.map((v) => (digits.includes(v) ? SURE / digits.length : rest));
  }

  const costOf = (name, digits, label) =>
    losses.evaluate(name, [...concentrated(digits), 1e-4].map(Math.log), label, lossState.get().sigma).loss;

  /** Where the probability lies, at each place of the horizontal axis. */
  function places(target) {
    if (kind === "one") return losses.VALUES.map((v) => ({ x: v, digits: [v] }));
    const reach = Math.min(target, 9 - target);
    return Array.from({ length: reach + 1 }, (_, d) => ({ x: d, digits: d ? [target - d, target + d] : [target] }));
  }

  function curves(target) {
    const label = losses.VALUES.map((v) => (v === target ? 1 : 0));
    return CURVES.map(([name, title, style]) => {
      const points = places(target).map(({ x, digits }) => {
        return { x, digits, loss: costOf(name, digits, label) };
      });
      return { title, style, points };
    });
  }

  function drawSweep(width) {
    const target = lossState.get().target ?? 4;
    const lines = curves(target);
    const xs = lines[0].points.map(({ x }) => x);
    const keys = width < 380 ? 2 : 3;
    const [left, right, top, base] = [12, width - 12, keys === 2 ? 76 : 56, 226];
    const toX = (x) => left + ((right - left) * (x - xs[0])) / Math.max(xs[xs.length - 1] - xs[0], 1);
    // Each curve by its largest value with all probability on one digit, so that both views have one scale.
    const parts = [axis(xs, toX, base, left, right)];
    lines.forEach(({ title, style, points }, i) => {
      const largest = largestOf(CURVES[i][0], target);
      const path = linePath(points.map(({ x, loss }) => [toX(x), base - ((base - top) * loss) / largest]));
      const [x, y] = [left + ((right - left) / keys) * (i % keys), 14 + 20 * Math.floor(i / keys)];
      parts.push(
        svg("path", { d: path, class: `curve ${style}` }),
        svg("line", { x1: x, x2: x + 22, y1: y, y2: y, class: `curve ${style}` }),
        text(x + 28, y + 4, title),
      );
    });
    return parts;
  }

  function largestOf(name, target) {
    const label = losses.VALUES.map((v) => (v === target ? 1 : 0));
    return Math.max(...losses.VALUES.map((v) => costOf(name, [v], label)));
  }

  /** What the curves show, from their points. */
  function describeSweep() {
    const { target: right } = lossState.get();
    const target = right ?? 4;
    const found = Object.fromEntries(curves(target).map(({ title, points }) => [title, points]));
    const range = (title, wrong) => {
      const costs = found[title].filter(({ digits }) => !wrong || !digits.includes(target)).map(({ loss }) => loss);
      return [Math.min(...costs), Math.max(...costs)].map((cost) => cost.toFixed(2));
    };
    const start = right === null ? `With the right digit in doubt, this figure takes ${target}. ` : "";
    if (kind === "one") {
      const [entropy, most] = range("Cross-entropy", true);
      const [near, far] = range("NTL-WAS", true);
      const [least, worst] = range("HL-Gauss", true);
      const [certain] = range("HL-Gauss");
      return (
        `${start}Nearly all probability on one digit; the answer is ${target}. By cross-entropy every wrong digit costs ` +
        `${entropy === most ? most : `${entropy} to ${most}`}; by NTL-WAS, ${near} to ${far}; by HL-Gauss, ${least} to ${worst}, and ` +
        `being sure of ${target} costs ${certain}. Each curve is divided by its largest value.`
      );
    }
    if (target === 0 || target === 9) return `No digit lies on the other side of ${target}: choose a right digit from 1 to 8.`;
    return (
      `${start}Half below and half above ${target}, equally far. NTL-MSE charges ${range("NTL-MSE")[1]} at most, however far; ` +
      `NTL-WAS up to ${range("NTL-WAS")[1]}.`
    );
  }

  function updateSweep() {
    show(byId("sweep"), 256, "Five losses against the digit that the probability is on", drawSweep);
    byId("sweep-note").textContent = describeSweep();
  }

  const kinds = [
    ["one", "on one digit"],
    ["both", "half on either side"],
  ];
  function setKind(value) {
    kind = value;
    updateSweep();
  }
  const chooseKind = radios(byId("sweep-kind"), kinds, kind, (value) => {
    setKind(value);
    address.changed();
  });
  address.part({
    write: () => ({ place: kind === "one" ? "" : kind }),
    read: ({ place = "one" }) => {
      if (!kinds.some(([value]) => value === place)) throw new Error(`no probability lies “${place}”.`);
      chooseKind(place);
      if (place !== kind) setKind(place);
    },
  });
  lossState.onChange(updateSchematic);
  let drawn; // the right digit and sigma of the curves, which depend on nothing else
  lossState.onChange(() => {
    const { target, sigma } = lossState.get();
    if (`${target} ${sigma}` !== drawn) updateSweep();
    drawn = `${target} ${sigma}`;
  });
  onResize(() => {
    updateSchematic();
    updateSweep();
  });
})();
