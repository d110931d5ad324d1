// The playground: a conversation with one model, or with two side by side.

import { AnswerView } from "./answer.js";
import { Composer } from "./composer.js";
import { Answer, Conversation } from "./conversation.js";
import { announce, button, h } from "./dom.js";
import { Settings } from "./settings.js";
import { showSnippets } from "./snippet.js";
import { TurnView } from "./turn.js";

export class Playground {
  constructor(element, api) {
    this.api = api;
    this.conversation = new Conversation();
    this.views = new Map(); // turn → TurnView
    this.running = new Set(); // AbortControllers
    this.settings = new Settings();
    this.composer = new Composer({ onsend: (text) => this.#ask(text), onstop: () => this.stop() });
    this.pickers = ["Model", "Second model"].map((label, place) => picker(label, `model-${place}`));
    this.compare = h("input", { type: "checkbox", id: "compare", onchange: () => this.#compared() });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.empty = h("p", { class: "empty" }, "Ask something. The answer appears here as it is made.");
    this.follow = true; // the newest line stays in sight, until somebody scrolls away from it
    this.log = h("div", { class: "log", onscroll: () => this.#scrolled() }, this.empty);
    this.panel = h("details", { class: "panel" }, h("summary", {}, "Settings"), this.settings.element);
    this.panel.open = matchMedia("(min-width: 60rem)").matches;
    element.append(
      h(
        "div",
        { class: "bar" },
        this.pickers[0].element,
        h("span", { class: "field check" }, this.compare, h("label", { for: "compare" }, "Compare with")),
        this.pickers[1].element,
        h("span", { class: "space" }),
        button("Code", () => this.#code(), { title: "This request as curl and Python" }),
        button("New chat", () => this.clear()),
      ),
      h("div", { class: "columns" }, h("div", { class: "talk" }, this.log, this.problem, this.composer.element), this.panel),
    );
    this.#compared();
  }

  /** Ask the server for its models. */
  async open() {
    try {
      const names = await this.api.models();
      this.pickers.forEach((one, place) => one.fill(names, place));
      this.#fail(names.length ? "" : "No model is served here, or none for this key.");
    } catch (error) {
      this.#fail(error.message);
    }
    this.composer.input.focus({ preventScroll: true });
  }

  close() {}

  stop() {
    for (const controller of this.running) controller.abort();
  }

  clear() {
    this.stop();
    this.conversation = new Conversation();
    this.views.clear();
    this.log.replaceChildren(this.empty);
    this.#fail("");
    this.composer.input.focus();
  }

  get #models() {
    return this.pickers.slice(0, this.compare.checked ? 2 : 1).map((one) => one.value);
  }

  #compared() {
    this.pickers[1].element.hidden = !this.compare.checked;
  }

  #fail(text) {
    this.problem.textContent = text;
    this.problem.hidden = !text;
  }

  #body(turn, column, model, fields) {
    const messages = this.conversation.messages(this.settings.systemPrompt, turn, column);
    return { model, messages, stream: true, stream_options: { include_usage: true }, ...fields };
  }

  /** The settings' fields, or null when they say something that cannot be. */
  #fields() {
    try {
      const fields = this.settings.fields;
      this.#fail("");
      return fields;
    } catch (error) {
      this.panel.open = true;
      this.#fail(error.message);
      return null;
    }
  }

  #ask(text) {
    const fields = this.#fields();
    if (fields === null) return;
    this.composer.text = "";
    this.empty.remove();
    const turn = this.conversation.ask(text);
    const view = new TurnView(turn, (edited) => this.#edit(turn, edited));
    this.views.set(turn, view);
    this.log.append(view.element);
    this.#models.forEach((model, column) => this.#answer(turn, column, model, fields));
    this.#markLast();
    this.follow = true;
    this.#drawn();
  }

  /** Ask anew from `turn` on: what came after it is forgotten. */
  #edit(turn, text) {
    if (this.#fields() === null) return;
    this.stop();
    const place = this.conversation.turns.indexOf(turn);
    for (const gone of this.conversation.turns.slice(place)) {
      this.views.get(gone)?.element.remove();
      this.views.delete(gone);
    }
    this.conversation.cutBefore(turn);
    this.#ask(text);
    this.composer.input.focus({ preventScroll: true });
  }

  async #answer(turn, column, model, fields) {
    const answer = new Answer(model);
    const body = this.#body(turn, column, model, fields);
    turn.answers[column] = answer;
    const view = new AnswerView(answer, () => {
      const now = this.#fields();
      if (now === null) return;
      this.#answer(turn, column, this.#models[column] ?? model, now);
      this.#markLast();
      this.composer.input.focus({ preventScroll: true });
    }, () => this.#drawn());
    this.views.get(turn).put(column, view);
    const controller = new AbortController();
    this.running.add(controller);
    this.composer.running = true;
    announce(`${model} is answering`);
    try {
      for await (const chunk of this.api.chat(body, controller.signal)) {
        answer.add(chunk);
        view.changed();
      }
      answer.state = "done";
    } catch (error) {
      answer.state = controller.signal.aborted ? "stopped" : "failed";
      if (!controller.signal.aborted) answer.error = error.message;
    }
    this.running.delete(controller);
    this.composer.running = this.running.size > 0;
    view.draw();
    announce({ done: `${model} has answered`, stopped: "Stopped", failed: `${model} failed` }[answer.state]);
  }

  #scrolled() {
    this.follow = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
  }

  #drawn() {
    if (this.follow) this.log.scrollTop = this.log.scrollHeight;
  }

  #markLast() {
    const last = this.conversation.turns.at(-1);
    for (const [turn, view] of this.views) view.last = turn === last;
  }

  /** What would be sent now, or what was sent last where nothing is written. */
  #code() {
    const fields = this.#fields();
    if (fields === null) return;
    const written = this.composer.text;
    const last = this.conversation.turns.at(-1);
    const turn = written || !last ? { question: written || "Hello!", answers: [] } : last;
    showSnippets(this.api, this.#body(turn, 0, this.#models[0], fields));
  }
}

/** A list of models with its label. */
function picker(label, id) {
  const select = h("select", { id });
  return {
    element: h("span", { class: "field pick" }, h("label", { for: id }, label), select),
    get value() {
      return select.value;
    },
    fill(names, preferred) {
      const before = select.value;
      select.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      select.value = names.includes(before) ? before : (names[preferred] ?? names[0] ?? "");
    },
  };
}
