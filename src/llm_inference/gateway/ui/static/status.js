// The status view: how the service is now, and how its requests of the last minutes went.

import { h } from "./dom.js";
import { Engines } from "./engines.js";
import { count, moment, percent, rate, seconds, span } from "./format.js";
import { fullestCache, state, sum, tokensPerSecond } from "./load.js";
import { Sparkline } from "./sparkline.js";
import { table } from "./table.js";

const EVERY_MS = 2000;
const TIMES = [
  ["First token", "ttft_s"],
  ["Each further token", "token_s"],
  ["Waiting in the queue", "queue_s"],
  ["Whole request", "total_s"],
];
const FIGURES = [
  ["Requests", (one) => count(one.recent.num_requests), "number"],
  ["Errors", (one) => count(one.recent.num_errors), "number"],
  ["First token p50", (one) => seconds(one.recent.ttft_s?.p50), "number"],
  ["p95", (one) => seconds(one.recent.ttft_s?.p95), "number"],
  ["Per token p50", (one) => seconds(one.recent.token_s?.p50), "number"],
];

export class Status {
  constructor(element, api) {
    this.api = api;
    this.timer = null;
    this.before = null;
    this.line = new Sparkline("Tokens per second", rate);
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.state = h("p", { class: "state" });
    this.tiles = h("dl", { class: "tiles" });
    this.engines = new Engines(api);
    this.tables = h("div", { class: "tables" });
    element.append(
      h("h2", { class: "unseen" }, "Status"),
      this.problem,
      this.state,
      this.tiles,
      h("figure", { class: "card trend" }, h("figcaption", {}, "Tokens per second, the last three minutes"), this.line.element),
      this.engines.element,
      this.tables,
    );
  }

  async open() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), EVERY_MS);
    if (document.hidden) return;
    try {
      const now = await this.api.status();
      this.#draw(now);
      if (now.operator) await this.engines.open();
      else this.engines.close();
      this.problem.hidden = true;
    } catch (error) {
      this.problem.textContent = error.message;
      this.problem.hidden = false;
      if (error.status === 401 || error.status === 403) this.close();
    }
  }

  close() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  #draw(now) {
    const live = tokensPerSecond(this.before, now);
    this.before = now;
    if (live !== null) this.line.add(live);
    const { recent } = now;
    const cache = fullestCache(now);
    this.state.replaceChildren(
      h("strong", { class: `pill ${now.status}` }, now.status.replace("_", " ")),
      ` up ${span(now.uptime_s)}, version ${now.version}`,
    );
    const meter = cache === null ? null : h("meter", { min: 0, max: 1, high: 0.9, value: cache, "aria-label": "KV cache in use" });
    this.tiles.replaceChildren(
      tile("Tokens per second", rate(live)),
      tile("Running", count(sum(now, "num_running"))),
      tile("Waiting", count((sum(now, "num_waiting") ?? 0) + now.num_queued)),
      tile("In flight", count(now.in_flight), `of ${count(now.max_concurrent_requests)}`),
      tile("KV cache", percent(cache), null, meter),
      tile("Requests", count(recent.num_requests), `in ${span(recent.window_s)}`),
      tile("Errors", count(recent.num_errors), `in ${span(recent.window_s)}`),
    );
    this.#keepScrolled(() => this.tables.replaceChildren(...tables(now)));
  }

  /** A table that somebody scrolled, or stands in, stays so when it is drawn anew. */
  #keepScrolled(draw) {
    const regions = () => [...this.tables.querySelectorAll(".scroll")];
    const before = new Map(regions().map((one) => [one.getAttribute("aria-label"), one.scrollLeft]));
    const focused = document.activeElement?.closest?.(".tables .scroll")?.getAttribute("aria-label");
    draw();
    for (const region of regions()) {
      const label = region.getAttribute("aria-label");
      region.scrollLeft = before.get(label) ?? 0;
      if (label === focused) region.focus({ preventScroll: true });
    }
  }
}

function tables(now) {
  const window = `the last ${span(now.recent.window_s)}`;
  const models = Object.entries(now.models).map(([name, model]) => ({ name, ...model }));
  const tiers = Object.entries(now.tiers).map(([name, recent]) => ({ name, recent }));
  const times = TIMES.map(([name, field]) => ({ name, times: now.recent[field] })).filter((row) => row.times);
  const made = [
    table(
      "Models",
      [
        ["Model", (one) => one.name],
        ["State", (one) => h("span", { class: `pill ${state(one)}`, title: one.reason }, state(one))],
        ["Engine", (one) => one.engine],
        ["Running", (one) => count(one.load?.num_running), "number"],
        ["Waiting", (one) => count(one.load?.num_waiting), "number"],
        ["KV cache", (one) => percent(one.load?.kv_cache_usage), "number"],
        ["Prefix hits", (one) => percent(hits(one.load)), "number"],
        ["Restarts", (one) => count(one.load?.num_restarts), "number"],
        ...FIGURES,
      ],
      models,
      "No model is served here, or none for this key.",
    ),
    table(
      `Times of ${window}`,
      [
        ["", (one) => one.name],
        ["Half within (p50)", (one) => seconds(one.times.p50), "number"],
        ["p95", (one) => seconds(one.times.p95), "number"],
        ["p99", (one) => seconds(one.times.p99), "number"],
      ],
      times,
      "No request yet.",
    ),
    table(
      "Last errors",
      [
        ["When", (one) => moment(one.time)],
        ["Status", (one) => String(one.status), "number"],
        ["Code", (one) => one.code || "–"],
        ["Model", (one) => one.model || "–"],
        ["Route", (one) => one.route],
        ["Request", (one) => h("code", {}, one.request_id)],
      ],
      now.errors,
      "None.",
    ),
  ];
  if (tiers.length) made.splice(1, 0, table("Tiers", [["Tier", (one) => one.name], ...FIGURES], tiers, ""));
  return made;
}

function hits(load) {
  return load?.prefix_cache_queries ? load.prefix_cache_hits / load.prefix_cache_queries : null;
}

function tile(name, value, note, extra) {
  return h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, ` ${note}`) : null, extra ?? null));
}
