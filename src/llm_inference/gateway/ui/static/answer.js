// One answer on the page: what comes is drawn a few times a second, with its figures and what can be done with it.

import { copyButton } from "./clipboard.js";
import { button, h } from "./dom.js";
import { count, rate, seconds } from "./format.js";
import { render } from "./markdown.js";
import { Tokens } from "./tokens.js";

const REDRAW_MS = 60;
const ENDS = { length: "cut off at the most tokens", stop: "", tool_calls: "called a tool", content_filter: "filtered" };

export class AnswerView {
  /** `onregenerate` is called when another answer is wanted, `ondrawn` after each drawing. */
  constructor(answer, onregenerate, ondrawn = () => {}) {
    this.answer = answer;
    this.ondrawn = ondrawn;
    this.timer = null;
    this.thought = h("div", { class: "markdown" });
    this.thinking = h("details", { class: "thinking", hidden: true }, h("summary", {}, "Thoughts"), this.thought);
    this.text = h("div", { class: "markdown" });
    this.tokens = null;
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.figures = h("span", { class: "figures" });
    this.again = button("Regenerate", onregenerate, { class: "small regenerate" });
    this.copy = copyButton(() => this.answer.text);
    this.switch = button("Tokens", () => this.#turn(), { class: "small", hidden: true, "aria-pressed": "false" });
    this.actions = h("span", { class: "actions" }, this.switch, this.copy, this.again);
    this.element = h(
      "article",
      { class: "answer", "aria-label": `Answer of ${answer.model}` },
      h("h3", { class: "who" }, answer.model),
      this.thinking,
      this.text,
      this.problem,
      h("footer", {}, this.figures, this.actions),
    );
    this.draw();
  }

  /** Draw soon; many calls are one drawing. */
  changed() {
    this.timer ??= setTimeout(() => this.draw(), REDRAW_MS);
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = null;
    const { answer } = this;
    const running = answer.state === "running";
    if (answer.reasoning) {
      this.thinking.hidden = false;
      render(this.thought, answer.reasoning);
    }
    render(this.text, answer.text);
    this.text.classList.toggle("waiting", running && !answer.text);
    if (answer.tokens.length) this.#drawTokens();
    this.problem.hidden = !answer.error;
    this.problem.textContent = answer.error;
    this.figures.textContent = figures(answer);
    this.element.setAttribute("aria-busy", String(running));
    this.actions.hidden = running;
    this.copy.hidden = !answer.text;
    this.ondrawn();
  }

  /** Whether "Regenerate" makes sense: for the last turn alone, since later ones build on this answer. */
  set last(value) {
    this.again.hidden = !value;
  }

  #drawTokens() {
    if (this.tokens === null) {
      this.tokens = new Tokens();
      this.text.after(this.tokens.element);
      this.switch.hidden = false;
      this.#turn(); // whoever asked for probabilities wants to see them
    }
    this.tokens.show(this.answer.tokens);
  }

  #turn() {
    const wanted = this.switch.getAttribute("aria-pressed") !== "true";
    this.switch.setAttribute("aria-pressed", String(wanted));
    this.tokens.element.hidden = !wanted;
    this.text.hidden = wanted;
  }
}

function figures(answer) {
  const parts = [];
  if (answer.firstTokenSeconds !== null) parts.push(`first token ${seconds(answer.firstTokenSeconds)}`);
  if (answer.tokensPerSecond !== null) parts.push(`${rate(answer.tokensPerSecond)} tokens/s`);
  if (answer.usage) parts.push(`${count(answer.usage.completion_tokens)} tokens`);
  if (answer.usage?.prompt_tokens_details?.cached_tokens) {
    parts.push(`${count(answer.usage.prompt_tokens_details.cached_tokens)} of ${count(answer.usage.prompt_tokens)} prompt tokens cached`);
  }
  if (answer.state === "stopped") parts.push("stopped");
  else if (answer.state === "done" && ENDS[answer.finish]) parts.push(ENDS[answer.finish]);
  return parts.join(" · ");
}
