// The usage view: the ledger's sums, of the key that is used here, or of all keys for an administrator.

import { h } from "./dom.js";
import { count, price } from "./format.js";
import { table } from "./table.js";

const GROUPS = [
  ["day", "Day"],
  ["month", "Month"],
  ["model", "Model"],
  ["key", "Key"],
  ["day,model", "Day and model"],
  ["key,model", "Key and model"],
];
const DAYS = [1, 7, 30, 90, 366];
const NAMES = { day: "Day", month: "Month", model: "Model", key: "Key" };

export class Usage {
  constructor(element, api) {
    this.api = api;
    this.by = chooser("usage-by", "Sum up by", GROUPS, "day,model", () => this.open());
    const days = DAYS.map((number) => [String(number), number === 1 ? "today" : `${number} days`]);
    this.days = chooser("usage-days", "Over", days, "30", () => this.open());
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.result = h("div", { class: "tables" });
    element.append(
      h("h2", { class: "unseen" }, "Usage"),
      h("div", { class: "bar" }, this.by.element, this.days.element),
      this.problem,
      this.result,
    );
  }

  async open() {
    const asked = (this.asked = Symbol("the newest question"));
    try {
      const report = await this.api.usage(this.by.value, this.days.value);
      if (asked !== this.asked) return;
      this.result.replaceChildren(...drawn(report));
      this.problem.hidden = true;
    } catch (error) {
      if (asked !== this.asked) return;
      this.result.replaceChildren();
      this.problem.textContent = error.message;
      this.problem.hidden = false;
    }
  }

  close() {}
}

function drawn(report) {
  if (!report.ledger) {
    return [h("p", { class: "note" }, "No ledger is kept. Set ", h("code", {}, "api: {ledger: sqlite}"), " in the configuration, and every request from then on is counted here.")];
  }
  const tokens = (row) => row.prompt_tokens + row.completion_tokens;
  const most = Math.max(1, ...report.rows.map(tokens));
  const columns = [
    ...report.by.map((name) => [NAMES[name], (row) => row[name] || "–"]),
    ["Tokens", (row) => bar(tokens(row) / most)],
    ["Requests", (row) => count(row.requests), "number"],
    ["Prompt", (row) => count(row.prompt_tokens), "number"],
    ["Cached", (row) => count(row.cached_tokens), "number"],
    ["Generated", (row) => count(row.completion_tokens), "number"],
  ];
  if (report.rows.some((row) => row.price !== undefined)) columns.push(["Price", (row) => price(row.price), "number"]);
  const rows = report.by[0] === "day" || report.by[0] === "month" ? [...report.rows].reverse() : report.rows;
  const whose = report.all_keys ? "Usage of all keys" : "Your usage";
  const total = (name) => rows.reduce((sum, row) => sum + row[name], 0);
  const all = h(
    "p",
    { class: "state" },
    `${count(total("requests"))} requests, ${count(total("prompt_tokens"))} prompt tokens, `,
    `${count(total("completion_tokens"))} generated tokens`,
  );
  return [all, table(whose, columns, rows, "Nothing was used in this time.")];
}

function bar(share) {
  const element = h("span", { class: "bar", "aria-hidden": "true" });
  element.style.width = `${Math.max(2, Math.round(100 * share))}px`;
  return element;
}

function chooser(id, label, options, chosen, onchange) {
  const select = h("select", { id, onchange }, ...options.map(([value, text]) => h("option", { value }, text)));
  select.value = chosen;
  return {
    element: h("span", { class: "field pick" }, h("label", { for: id }, label), select),
    get value() {
      return select.value;
    },
  };
}
