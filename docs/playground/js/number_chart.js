/** The chart of a distribution over numbers, with readings marked. */
"use strict";

const numberChart = (() => {
  const { svg, text, show, linePath, axis } = drawing;

  /** Lines at single numbers, with their names in rows that do not overlap. */
  function marks(lines, toX, base, width) {
    return lines.flatMap(([label, value, style], row) => {
      const x = toX(value);
      const left = x > width * 0.6;
      const words = { "text-anchor": left ? "end" : "start", class: `mark-name ${style}` };
      const y = 14 + 17 * row;
      return [
        svg("line", { x1: x, x2: x, y1: y - 10, y2: base, class: `mark ${style}` }),
        text(x + (left ? -6 : 6), y, `${label} ${Math.round(value)}`, words),
      ];
    });
  }

  /**
   * Draw a distribution over whole numbers from 0.
   *
   * @param {HTMLElement} container
   * @param {ArrayLike<number>} probs - of each number, such as `[1000]`.
   * @param {Object} options - `label`; `lines`: name, value, class of each mark; `band`: interval; `range`: numbers to
   *   highlight; `beside`: another distribution, as a line; `span`: numbers of the axis.
   */
  function draw(container, probs, { label, lines, band, range, beside, span = [0, 999] }) {
    const top = 22 + 17 * lines.length;
    const base = top + 120;
    const [from, to] = span;
    const largest = Math.max(...Array.from(probs).slice(from, to + 1), ...(beside || []));
    show(container, base + 26, label, (width) => {
      const toX = (number) => 6 + ((width - 12) * (number - from)) / (to - from);
      const toY = (p) => base - (p / largest) * (base - top);
      const inside = Array.from({ length: to - from + 1 }, (_, i) => from + i);
      const outline = inside.map((i) => [toX(i), toY(probs[i])]);
      const area = linePath([[toX(from), base], ...outline, [toX(to), base]]);
      const step = to - from > 400 ? (width < 500 ? 200 : 100) : to - from > 100 ? 50 : 20;
      const ticks = inside.filter((i) => i % step === 0);
      const parts = [];
      if (band) parts.push(svg("rect", { ...box(band, toX), y: top, height: base - top, class: "band" }));
      parts.push(svg("path", { d: area, class: "area" }));
      if (beside) parts.push(svg("path", { d: linePath(inside.map((i) => [toX(i), toY(beside[i])])), class: "beside" }));
      parts.push(axis(ticks, toX, base, 6, width - 6));
      if (range) parts.push(svg("rect", { ...box(range, toX), y: base, height: 4, class: "range" }));
      return [...parts, ...marks(lines, toX, base, width)];
    });
  }

  const box = ([low, high], toX) => ({ x: toX(low), width: Math.max(toX(high) - toX(low), 2) });

  return { draw };
})();
