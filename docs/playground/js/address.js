/**
 * The state of the page in its address, `#numbers&shape=bell&center=405`: a section, then fields that differ from
 * their defaults.
 *
 * Each section registers one part:
 *
 *     address.part({
 *       write: () => ({ shape: state.shape }), // all fields, as text; "" for a default is left out of the address
 *       read: ({ shape = "camps" }) => { ... }, // set state, controls and figures; throw an Error if it is invalid
 *     });
 *     address.changed(); // after a choice: a new entry in the history
 *     address.changed("center"); // after a step of a drag or slider: an entry for the whole drag
 *
 * `read` gets no fields for the defaults. An Error's message ends the sentence "This link was ignored: …".
 */
"use strict";

const address = (() => {
  const parts = [];
  let section = "";
  let merged = "";
  // Browsers refuse more than about twenty changes of the address per second, so a drag waits for a pause.
  const PAUSE = 150;
  let timer = 0;
  let waiting = null;

  const encode = (text) => encodeURIComponent(text).replace(/%2C/g, ",").replace(/%20/g, "+");
  const decode = (text) => decodeURIComponent(text.replace(/\+/g, " "));

  /** The fields of all parts, without those at their defaults. */
  function write() {
    const fields = Object.assign({}, ...parts.map((part) => part.write()));
    return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== ""));
  }

  function format(name, fields) {
    const pieces = Object.entries(fields).map(([key, value]) => `${key}=${encode(value)}`);
    return [...(name ? [name] : []), ...pieces].join("&");
  }

  /** Section and fields of the text after "#". */
  function parse(text) {
    const found = { name: "", fields: {} };
    text.split("&").forEach((piece, i) => {
      const [key, ...value] = piece.split("=");
      if (value.length) found.fields[key] = decode(value.join("="));
      else if (i === 0) found.name = decode(key);
      else throw new Error(`“${piece}” has no value.`);
    });
    if (found.name && !document.getElementById(found.name)) throw new Error(`there is no part “${found.name}”.`);
    return found;
  }

  /** Put the page into a state; fields that no part knows are refused. */
  function read(fields) {
    const known = parts.flatMap((part) => Object.keys(part.write()));
    const unknown = Object.keys(fields).find((key) => !known.includes(key));
    if (unknown !== undefined) throw new Error(`“${unknown}” is not a setting of this page.`);
    parts.forEach((part) => part.read(fields));
  }

  /** Store the state in the current entry of the history, or in a new one. */
  function store(how, text = format(section, write())) {
    const url = text ? `#${text}` : location.pathname + location.search;
    const same = location.hash.slice(1) === text;
    history[same ? "replaceState" : how]({ kept: true }, "", url);
  }

  function complain(message) {
    byId("address-text").textContent = message;
    byId("address-note").hidden = !message;
  }

  const byId = (id) => document.getElementById(id);

  /** Follow the address; what it cannot mean changes nothing and is said. */
  function follow() {
    const before = write();
    complain("");
    clearTimeout(timer);
    waiting = null;
    merged = "";
    try {
      const { name, fields } = parse(location.hash.slice(1));
      section = name;
      // A link within the page has no fields, and keeps the state.
      if (history.state === null && name && !Object.keys(fields).length) read(before);
      else read(fields);
    } catch (error) {
      const reason = error instanceof URIError ? "it is damaged." : error.message;
      complain(`This link was ignored: ${reason}`);
      read(before);
    }
    const fresh = history.state === null;
    store("replaceState");
    if (fresh && section) byId(section).scrollIntoView();
  }

  /**
   * Store the state after a change by the visitor.
   *
   * @param {string} merge - changes in a row with the same name share an entry of the history; "" always adds one.
   */
  function changed(merge = "") {
    complain("");
    clearTimeout(timer);
    if (merge && merge === merged) {
      waiting = format(section, write());
      timer = setTimeout(storeWaiting, PAUSE);
      return;
    }
    storeWaiting();
    store("pushState");
    merged = merge;
  }

  /** Store the last state of a drag in its entry. */
  function storeWaiting() {
    if (waiting !== null) store("replaceState", waiting);
    waiting = null;
  }

  /** A button that copies what `text` returns, and says so. */
  function copier(name, text) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "quiet", textContent: name });
    button.addEventListener("click", async () => {
      button.textContent = (await copy(text())) ? "Copied" : "Not allowed: select and copy it";
      setTimeout(() => (button.textContent = name), 2000);
    });
    return button;
  }

  /** A button that copies the link to a section, with the state. */
  const copyButton = (name) => copier("Copy link", () => `${location.href.split("#")[0]}#${format(name, write())}`);

  /** A button that copies what `text` returns. */
  const copyText = (text) => copier("Copy", text);

  /** A number of the address. */
  function numberOf(text, key, least, most) {
    if (text !== "" && Number(text) >= least && Number(text) <= most) return Number(text);
    throw new Error(`“${key}=${text}” is not ${least} to ${most}.`);
  }

  /** Copy a text; returns whether the browser did. */
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false; // refused, or not offered
    }
  }

  byId("address-close").addEventListener("click", () => complain(""));
  document.addEventListener("DOMContentLoaded", () => {
    follow();
    window.addEventListener("popstate", follow);
  });

  return { part: (part) => parts.push(part), changed, copyButton, copyText, numberOf };
})();
