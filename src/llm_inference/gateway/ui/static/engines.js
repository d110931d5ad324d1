// The engines behind the models, for operators: their states, and what may be done with each.

import { Confirm } from "./confirm.js";
import { announce, button, h } from "./dom.js";
import { count, size, span } from "./format.js";
import { table } from "./table.js";

const ACTIONS = {
  load: ["Load", "It takes requests as soon as it is ready."],
  drain: ["Drain", "It gets no more requests and finishes what it runs; it stays loaded."],
  restart: ["Restart", "It finishes what it runs, stops, and is loaded again. Requests wait meanwhile."],
  unload: ["Unload", "It finishes what it runs, then its memory is free."],
};
const OFFERED = {
  loaded: ["drain", "restart", "unload"],
  draining: ["load", "restart", "unload"],
  loading: ["unload"],
  unloaded: ["load"],
};

export class Engines {
  constructor(api) {
    this.api = api;
    this.confirm = new Confirm();
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.tables = h("div", { class: "tables" });
    this.element = h("section", { "aria-label": "Engines", hidden: true }, this.problem, this.tables);
  }

  /** Of a server that says that the caller is an operator. */
  async open() {
    const report = await this.api.replicas();
    const rows = report.models.flatMap((model) => model.replicas.map((replica) => ({ model: model.name, ...replica })));
    const scrolled = this.tables.querySelector(".scroll")?.scrollLeft ?? 0;
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    this.tables.replaceChildren(this.#engines(rows), ...workers(report.workers));
    const region = this.tables.querySelector(".scroll"); // none where the caller may see no model
    if (region) region.scrollLeft = scrolled;
    if (focused) this.tables.querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    this.element.hidden = false;
  }

  close() {
    this.element.hidden = true;
  }

  #engines(rows) {
    return table(
      "Engines",
      [
        ["Replica", (one) => one.id],
        ["State", (one) => h("span", { class: `pill ${one.state}`, title: one.reason }, one.state)],
        ["For", (one) => span(one.since_s), "number"],
        ["In flight", (one) => count(one.in_flight), "number"],
        ["Running", (one) => count(one.num_running), "number"],
        ["Waiting", (one) => count(one.num_waiting), "number"],
        ["Requests", (one) => count(one.num_requests), "number"],
        ["Memory", (one) => size(one.resident_bytes ?? one.memory_bytes), "number"],
        ["Reason", (one) => one.reason || "–"],
        ["", (one) => h("span", { class: "actions" }, ...OFFERED[one.state].map((action) => this.#button(action, one)))],
      ],
      rows,
      "None.",
    );
  }

  #button(action, replica) {
    const [label] = ACTIONS[action];
    return button(label, () => this.#act(action, replica), {
      class: "small",
      "aria-label": `${label} ${replica.id}`,
      "data-act": `${action} ${replica.id}`,
    });
  }

  async #act(action, replica) {
    const [label, text] = ACTIONS[action];
    if (!(await this.confirm.ask(`${label} ${replica.id}?`, text, label))) return;
    try {
      await this.api.act(action, replica.model, replica.id);
      this.problem.hidden = true;
      announce(`${label}: ${replica.id}`);
      await this.open();
    } catch (error) {
      this.problem.textContent = error.message;
      this.problem.hidden = false;
    }
  }
}

/** One gateway process alone is no news. */
function workers(list) {
  if (list.length < 2) return [];
  return [
    table(
      "Gateway workers",
      [
        ["Worker", (one) => String(one.worker)],
        ["In flight", (one) => count(one.in_flight), "number"],
        ["Waiting", (one) => count(one.num_waiting), "number"],
      ],
      list,
      "",
    ),
  ];
}
