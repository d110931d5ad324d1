// One turn on the page: the question, which can be edited, and below it the answers, side by side.

import { button, h } from "./dom.js";

export class TurnView {
  /** `onedit(text)` is called with the new question. */
  constructor(turn, onedit) {
    this.turn = turn;
    this.onedit = onedit;
    this.views = [];
    this.question = h("div", { class: "question" });
    this.answers = h("div", { class: "answers" });
    this.element = h("section", { class: "turn", "aria-label": "Turn" }, this.question, this.answers);
    this.#read();
  }

  /** Put `view` (an AnswerView) into `column`, in place of what was there. */
  put(column, view) {
    const before = this.views[column];
    if (before) before.element.replaceWith(view.element);
    else this.answers.append(view.element);
    this.views[column] = view;
    this.answers.classList.toggle("two", this.views.length > 1);
  }

  set last(value) {
    for (const view of this.views) if (view) view.last = value;
  }

  #read() {
    this.question.replaceChildren(
      h("h3", { class: "who" }, "You"),
      h("p", {}, this.turn.question),
      button("Edit", () => this.#write(), { class: "small edit" }),
    );
  }

  #write() {
    const input = h("textarea", { "aria-label": "Edit the message", rows: "3" });
    input.value = this.turn.question;
    const done = () => {
      if (input.value.trim()) this.onedit(input.value.trim());
    };
    const cancel = () => {
      this.#read();
      this.question.querySelector(".edit").focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") cancel();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        done();
      }
    });
    this.question.replaceChildren(
      h("h3", { class: "who" }, "You"),
      input,
      h("p", { class: "buttons" }, button("Cancel", cancel), button("Send", done, { class: "primary" })),
    );
    input.focus();
  }
}
