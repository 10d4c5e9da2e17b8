/** Plots of many answers as dots, one of them highlighted. */
"use strict";

const scatter = (() => {
  const { svg, text, show, axis } = drawing;
  const [LEFT, RIGHT, TOP, HEIGHT] = [34, 10, 10, 190];

  const dotPath = (points) => points.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");

  /**
   * Draw dots.
   *
   * @param {HTMLElement} container
   * @param {Object} options - `label`, for those who cannot see it; `points`: x and y of each; `style`: class of the
   *   dots; `x`, `y`: `{ range, ticks, title }` of the axes, where dots outside of a range are drawn at its end;
   *   `line`: two points of a dashed line; `mark`: a highlighted point, as `[x, y, words]`.
   */
  function draw(container, { label, points, style, x, y, line, mark }) {
    const base = TOP + HEIGHT;
    show(container, base + 40, label, (width) => {
      const toX = scale(x.range, LEFT, width - RIGHT);
      const toY = scale(y.range, base, TOP);
      const place = ([a, b]) => [toX(a), toY(b)];
      const parts = [
        axis(x.ticks, toX, base, LEFT, width - RIGHT),
        ...y.ticks.map((tick) => text(LEFT - 6, toY(tick) + 4, minus(tick), { "text-anchor": "end", class: "muted" })),
        text((LEFT + width) / 2, base + 34, x.title, { "text-anchor": "middle", class: "muted" }),
      ];
      if (line) {
        const [[x1, y1], [x2, y2]] = line.map(place);
        parts.push(svg("line", { x1, y1, x2, y2, class: "beside" }));
      }
      parts.push(svg("path", { d: dotPath(points.map(place)), class: `dots ${style}` }));
      return mark ? [...parts, ...drawMark(mark, place, width)] : parts;
    });
  }

  function drawMark([a, b, words], place, width) {
    const [cx, cy] = place([a, b]);
    const left = cx > width * 0.75;
    const above = cy > TOP + HEIGHT / 2;
    const at = { "text-anchor": left ? "end" : "start", class: "mark-name truth" };
    return [
      svg("circle", { cx, cy, r: 7, class: "ring" }),
      text(cx + (left ? -11 : 11), cy + (above ? -11 : 20), words, at),
    ];
  }

  /** A linear scale; values beyond the range stay at its ends. */
  function scale([from, to], start, end) {
    return (value) => start + ((Math.min(Math.max(value, from), to) - from) / (to - from)) * (end - start);
  }

  const minus = (number) => String(number).replace("-", "−");

  return { draw };
})();
