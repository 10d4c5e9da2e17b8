/** The bars of the prediction: handles to drag, arrow keys, and arrows for the pushes of a step of training. */
"use strict";

(() => {
  const { html, svg, byId, percent, short } = drawing;
  const TOKENS = [...losses.VALUES.map(String), "text"];
  const ALONG = 3; // pixels after which a drag has a direction
  const NO_IDEA = new Array(11).fill(0);

  /** A bar: its arrow, the track with the fill and its handle, and its texts. */
  function makeBar(token, index) {
    const fill = html("span", { class: "fill" });
    const truth = html("span", { class: "truth" });
    const handle = html("span", { class: "handle" });
    const track = html("span", { class: "track" }, fill, truth, handle);
    const push = html("span", { class: "push", "aria-hidden": "true" });
    const value = html("span", { class: "value" });
    const attributes = {
      class: "bar", role: "slider", tabindex: "0", "aria-label": index < 10 ? `Digit ${token}` : "Text",
      "aria-orientation": "vertical", "aria-valuemin": "0", "aria-valuemax": "100", "data-token": token,
    };
    const bar = html("div", attributes, push, value, track, html("span", { class: "name" }, token));
    bar.addEventListener("keydown", (event) => onKey(event, index));
    listenToDrags(handle, track, index);
    return { bar, fill, truth, handle, push, value };
  }

  /** A drag starts on the handle, upwards or downwards, with the main button or one finger. */
  function listenToDrags(handle, track, index) {
    let from = null;
    handle.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !event.isPrimary) return;
      event.preventDefault(); // selects no text
      from = { x: event.clientX, y: event.clientY, share: lossState.probs()[index], moved: false };
      handle.setPointerCapture(event.pointerId);
    });
    handle.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const [across, up] = [Math.abs(event.clientX - from.x), from.y - event.clientY];
      if (!from.moved && Math.max(across, Math.abs(up)) < ALONG) return;
      if (!from.moved && across > Math.abs(up)) {
        from = null;
        return;
      }
      if (!from.moved) lossState.interrupt(true);
      from.moved = true;
      lossState.show(lossState.withOne(index, from.share + up / track.clientHeight));
    });
    const end = () => {
      const moved = from !== null && from.moved;
      from = null;
      if (moved) lossState.commit();
    };
    ["pointerup", "pointercancel", "lostpointercapture"].forEach((name) => handle.addEventListener(name, end));
  }

  function onKey(event, index) {
    const steps = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1 };
    const ends = { Home: 0, End: 1 };
    if (event.ctrlKey || event.metaKey || event.altKey) return; // the browser's own, such as Alt+Left
    const now = lossState.probs()[index];
    const wanted = event.key in steps ? now + steps[event.key] : ends[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    lossState.change(lossState.withOne(index, wanted), `bar ${index}`);
  }

  /** An arrow for a push, up or down; the square root keeps small ones visible. */
  function drawPush(share) {
    const picture = svg("svg", { viewBox: "0 0 16 48", width: 16, height: 48 });
    if (Math.abs(share) < captions.STILL) {
      picture.append(svg("circle", { cx: 8, cy: 24, r: 1.5, class: "still" }));
      return picture;
    }
    const length = 23 * Math.sqrt(Math.abs(share));
    const sign = share > 0 ? -1 : 1;
    const tip = 24 + sign * length;
    const head = Math.min(5.5, 0.6 * length);
    const path = `M8 24 L8 ${tip} M${8 - head} ${tip - sign * head} L8 ${tip} L${8 + head} ${tip - sign * head}`;
    picture.append(svg("path", { d: path, class: share > 0 ? "up" : "down" }));
    return picture;
  }

  const bars = TOKENS.map(makeBar);

  function update() {
    const { target } = lossState.get();
    const now = lossState.probs();
    const label = lossState.labels();
    const { loss, gradient } = lossState.evaluateObjective();
    const pushes = lossState.pushes(gradient, lossState.evaluateObjective(NO_IDEA).gradient);
    const cost = `${lossState.objectiveTitle()} ${short(loss)}`;
    bars.forEach(({ bar, fill, truth, handle, push, value }, i) => {
      const height = `${(100 * now[i]).toFixed(2)}%`;
      fill.style.height = height;
      handle.style.bottom = height;
      truth.style.height = `${(100 * (label[i] || 0)).toFixed(2)}%`;
      truth.hidden = !label[i];
      bar.classList.toggle("right", i === target);
      bar.classList.toggle("in-doubt", target === null);
      bar.setAttribute("aria-valuenow", (100 * now[i]).toFixed(1));
      const direction = Math.abs(pushes[i]) < captions.STILL ? "not pushed" : pushes[i] > 0 ? "pushed up" : "pushed down";
      bar.setAttribute("aria-valuetext", `${percent(now[i], 1)}, ${direction}; ${cost}`);
      value.textContent = (100 * now[i]).toFixed(now[i] < 0.095 ? 1 : 0);
      push.replaceChildren(drawPush(pushes[i]));
    });
    byId("caption").textContent = `${captions.prediction()} ${captions.arrows(pushes)}`;
  }

  byId("bars").append(...bars.map(({ bar }) => bar));
  lossState.onChange(update);
})();
