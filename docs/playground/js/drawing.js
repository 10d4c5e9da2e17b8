/** Elements, charts and controls that all parts of the page share. */
"use strict";

const drawing = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function build(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  /** An HTML element with attributes and children (elements or text). */
  const html = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);

  /** An SVG element. */
  const svg = (tag, attributes = {}, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

  const byId = (id) => document.getElementById(id);

  /** Text in an SVG: `text(x, y, "words", {class: ...})`. */
  const text = (x, y, words, attributes = {}) => svg("text", { x, y, ...attributes }, words);

  /**
   * Put a drawing into a container, as wide as the container.
   *
   * @param {HTMLElement} container
   * @param {number} height - in pixels.
   * @param {string} label - says what is drawn, for those who cannot see it.
   * @param {function(number): Element[]} draw - makes the parts for a width.
   */
  function show(container, height, label, draw) {
    const width = Math.max(container.clientWidth, 100);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
    picture.append(...draw(width));
    container.replaceChildren(picture);
  }

  /** The path of a line through points. */
  const linePath = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

  /** A horizontal axis with ticks at numbers. */
  function axis(ticks, toX, y, left, right) {
    return svg(
      "g",
      { class: "axis" },
      svg("line", { x1: left, x2: right, y1: y, y2: y }),
      ...ticks.map((tick) => text(toX(tick), y + 16, String(tick), { "text-anchor": "middle" })),
    );
  }

  /**
   * A group of pills of which one is chosen; native radio buttons, so that the arrow keys work.
   *
   * @param {HTMLElement} container
   * @param {Array<[string, string]>} options - value and label.
   * @param {string} chosen - value of the first choice.
   * @param {function(string)} onChange
   * @returns {function(string)} chooses a value without calling `onChange`.
   */
  function radios(container, options, chosen, onChange) {
    const inputs = options.map(([value, label]) => {
      const input = html("input", { type: "radio", name: container.id, value, autocomplete: "off" });
      input.checked = value === chosen;
      input.addEventListener("change", () => onChange(value));
      container.append(html("label", { class: "pill" }, input, html("span", {}, label)));
      return input;
    });
    return (value) => inputs.forEach((input) => (input.checked = input.value === value));
  }

  /** A row of table cells; the first is a header. */
  const tableRow = (cells, tag = "td") =>
    html("tr", {}, ...cells.map((cell, i) => html(i ? tag : "th", i ? {} : { scope: "row" }, cell)));

  /** Fill a table from a header and rows of texts. */
  function fillTable(table, header, rows) {
    const head = html("tr", {}, ...header.map((cell) => html("th", { scope: "col" }, cell)));
    table.replaceChildren(html("thead", {}, head), html("tbody", {}, ...rows.map((row) => tableRow(row))));
  }

  /** Fill a description list from names, values and notes. */
  function fillReadings(list, rows) {
    const items = rows.map(([name, value, note]) =>
      html("div", {}, html("dt", {}, name), html("dd", {}, String(value)), html("dd", { class: "hint" }, note)),
    );
    list.replaceChildren(...items);
  }

  const percent = (p, digits = 0) => `${(100 * p).toFixed(digits)} %`;

  /** A number with a few significant digits, for losses of any size. */
  function short(x) {
    const size = Math.abs(x);
    if (size !== 0 && size < 0.001) return size < 1e-6 ? "0.000" : x.toExponential(0);
    return x.toFixed(size < 10 ? 3 : 2);
  }

  /** A slider on a scale of ten steps from each power of ten to the next: its value as a number, and back. */
  const ofLogScale = (step) => Number((10 ** (step / 10)).toPrecision(2));
  const toLogScale = (value) => Math.round(10 * Math.log10(value));

  /**
   * Read an input, and say beside it what is wrong, or what `read` returns if that is a text.
   *
   * @param {string} id - of the input; the message goes to the element with this id and "-says".
   * @param {function(): *} read - throws an Error if the input is invalid.
   * @returns {boolean} whether it is valid.
   */
  function tell(id, read) {
    let message = "";
    let valid = true;
    try {
      const found = read();
      if (typeof found === "string") message = found;
    } catch (error) {
      message = error.message;
      valid = false;
    }
    byId(id).setAttribute("aria-invalid", String(!valid));
    byId(`${id}-says`).textContent = message;
    return valid;
  }

  const redraws = [];
  /** Register a function that draws; it is called now and whenever the window's width changes. */
  function onResize(draw) {
    redraws.push(draw);
    draw();
  }
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    redraws.forEach((draw) => draw());
  });

  return {
    html, svg, text, byId, show, linePath, axis, radios, fillTable, fillReadings, tell, percent, short, ofLogScale, toLogScale,
    onResize,
  };
})();
