// An answer token by token: each coloured by its probability, which it tells under the pointer or the arrow keys.

import { h } from "./dom.js";
import { percent } from "./format.js";

const LEVELS = [0.9, 0.6, 0.3, 0.1]; // at least so likely: p0, p1, p2, p3; else p4

export class Tokens {
  constructor() {
    this.shown = 0;
    this.current = null;
    this.note = h("div", { class: "token-note", role: "status", hidden: true });
    this.text = h("div", {
      class: "tokens",
      tabindex: "0",
      role: "group",
      "aria-label": "Tokens of the answer; the arrow keys go from one to the next",
      onpointerover: (event) => this.#point(event.target),
      onpointerleave: () => this.#hide(),
      onfocus: () => this.#select(this.current ?? this.text.firstElementChild),
      onblur: () => this.#hide(),
      onkeydown: (event) => this.#key(event),
    });
    this.element = h("div", {}, this.text, this.note);
    this.entries = new WeakMap();
  }

  /** Show `tokens`, of which more come with every call. */
  show(tokens) {
    for (; this.shown < tokens.length; this.shown++) {
      const entry = tokens[this.shown];
      const level = LEVELS.findIndex((least) => Math.exp(entry.logprob) >= least);
      const span = h("span", { class: `token p${level < 0 ? LEVELS.length : level}` }, entry.token);
      this.entries.set(span, entry);
      this.text.append(span);
    }
  }

  #point(target) {
    if (this.entries.has(target)) this.#select(target);
  }

  #key(event) {
    const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    if (!step) return;
    event.preventDefault();
    this.#select(this.current?.[step] ?? this.current ?? this.text.firstElementChild);
  }

  #select(span) {
    const entry = span && this.entries.get(span);
    if (!entry) return;
    this.current?.classList.remove("current");
    this.current = span;
    span.classList.add("current");
    const others = entry.top.filter((other) => other.token !== entry.token);
    this.note.replaceChildren(
      line(entry, "chosen"),
      ...others.map((other) => line(other, "other")),
    );
    this.note.hidden = false;
    this.#place(span);
  }

  /** Below the token, or above it where there is more room; always within the window. */
  #place(span) {
    const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.note;
    const below = box.bottom + 4;
    this.note.style.left = `${Math.max(4, Math.min(box.left, innerWidth - width - 4))}px`;
    this.note.style.top = `${below + height < innerHeight ? below : Math.max(4, box.top - height - 4)}px`;
  }

  #hide() {
    this.note.hidden = true;
    this.current?.classList.remove("current");
  }
}

function line({ token, logprob }, kind) {
  const share = Math.exp(logprob);
  const bar = h("span", { class: "bar" });
  bar.style.width = `${Math.round(60 * share)}px`;
  return h("div", { class: kind }, h("code", {}, visible(token)), h("span", { class: "share" }, percent(share)), bar);
}

/** Spaces and line ends as signs. */
function visible(token) {
  return token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(nothing)";
}
