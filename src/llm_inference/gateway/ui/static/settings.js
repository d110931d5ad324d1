// The sampling parameters, each with what it does in plain words. What is left empty is the model's own default.

import { h } from "./dom.js";

const FIRST = [
  ["temperature", "Temperature", "0 always takes the likeliest word. Higher is more varied, above 1 it gets wild.", { min: 0, step: 0.1 }],
  ["max_tokens", "Most tokens", "The answer ends here at the latest. A token is about three quarters of a word.", { min: 1, step: 1 }],
];
const MORE = [
  ["top_p", "Top p", "Choose among the likeliest tokens that together have this share. 1: among all.", { min: 0.01, max: 1, step: 0.01 }],
  ["top_k", "Top k", "Choose among this many of the likeliest tokens. 0: among all.", { min: 0, step: 1 }],
  ["min_p", "Min p", "Leave out tokens that are less likely than this share of the best one.", { min: 0, max: 1, step: 0.01 }],
  ["repetition_penalty", "Repetition penalty", "Above 1: what was already said, here or in the question, is less likely.", { min: 0.01, step: 0.05 }],
  ["presence_penalty", "Presence penalty", "Above 0: go on to something new, however often it was said.", { min: -2, max: 2, step: 0.1 }],
  ["frequency_penalty", "Frequency penalty", "Above 0: the more often a word was said, the less likely it is.", { min: -2, max: 2, step: 0.1 }],
  ["seed", "Seed", "The same number and question give the same answer again.", { step: 1 }],
];

export class Settings {
  constructor() {
    this.inputs = new Map();
    this.system = h("textarea", { id: "system", rows: "3", placeholder: "None", "aria-describedby": "system-hint" });
    this.stop = h("textarea", { id: "stop", rows: "2", placeholder: "None", "aria-describedby": "stop-hint" });
    this.logprobs = h("input", { id: "logprobs", type: "checkbox", "aria-describedby": "logprobs-hint" });
    this.element = h(
      "form",
      { class: "settings", onsubmit: (event) => event.preventDefault() },
      field("system", "System prompt", "What the model is told before the conversation: its role, its manners.", this.system),
      ...FIRST.map((row) => this.#number(row)),
      h(
        "div",
        { class: "field check" },
        this.logprobs,
        h("label", { for: "logprobs" }, "Token probabilities"),
        h("small", { id: "logprobs-hint" }, "Shows how sure the model was of each token, and what else it considered."),
      ),
      h(
        "details",
        {},
        h("summary", {}, "More parameters"),
        ...MORE.map((row) => this.#number(row)),
        field("stop", "Stop at", "The answer ends before any of these texts, one per line.", this.stop),
      ),
    );
  }

  get systemPrompt() {
    return this.system.value.trim();
  }

  /** The request's fields: those alone that were set. Raises an Error in words when a value cannot be. */
  get fields() {
    const fields = {};
    for (const [name, input] of this.inputs) {
      if (!input.checkValidity()) {
        input.closest("details")?.setAttribute("open", "");
        input.reportValidity();
        throw new Error(`${input.dataset.label}: ${input.validationMessage}`);
      }
      if (input.value !== "") fields[name] = input.valueAsNumber;
    }
    const stop = this.stop.value.split("\n").filter((line) => line);
    if (stop.length) fields.stop = stop;
    if (this.logprobs.checked) Object.assign(fields, { logprobs: true, top_logprobs: 5 });
    return fields;
  }

  #number([name, label, hint, bounds]) {
    const input = h("input", {
      id: name,
      type: "number",
      inputmode: "decimal",
      placeholder: "the model's own",
      "data-label": label,
      "aria-describedby": `${name}-hint`,
      ...bounds,
      step: bounds.step === 1 ? 1 : "any",
    });
    this.inputs.set(name, input);
    return field(name, label, hint, input);
  }
}

function field(id, label, hint, input) {
  return h("div", { class: "field" }, h("label", { for: id }, label), input, h("small", { id: `${id}-hint` }, hint));
}
