// A conversation, as data: turns of one question and an answer per column. It knows no elements and no network.

/** An answer on its way. `state`: running, done, stopped or failed. */
export class Answer {
  constructor(model) {
    this.model = model;
    this.state = "running";
    this.text = "";
    this.reasoning = "";
    this.tokens = []; // {token, logprob, top: [{token, logprob}]}, where they were asked for
    this.usage = null;
    this.finish = null;
    this.error = "";
    this.started = performance.now();
    this.first = null;
    this.last = null;
  }

  /** Take one chunk of the stream. */
  add(chunk) {
    const now = performance.now();
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices) {
      const text = choice.delta.content ?? "";
      const reasoning = choice.delta.reasoning_content ?? choice.delta.reasoning ?? "";
      const tokens = choice.logprobs?.content ?? [];
      if (text || reasoning || tokens.length) {
        this.first ??= now;
        this.last = now;
      }
      this.text += text;
      this.reasoning += reasoning;
      for (const { token, logprob, top_logprobs: top } of tokens) this.tokens.push({ token, logprob, top: top ?? [] });
      this.finish = choice.finish_reason ?? this.finish;
    }
  }

  /** Seconds to the first token; null before it. */
  get firstTokenSeconds() {
    return this.first === null ? null : (this.first - this.started) / 1000;
  }

  /** Tokens per second after the first one; null where that cannot be told. */
  get tokensPerSecond() {
    const tokens = (this.usage?.completion_tokens ?? 0) - 1;
    return tokens < 1 || this.last <= this.first ? null : (1000 * tokens) / (this.last - this.first);
  }
}

export class Conversation {
  constructor() {
    this.turns = []; // {question, answers: [Answer or null, one per column]}
  }

  /** Forget `turn` and all after it. */
  cutBefore(turn) {
    const place = this.turns.indexOf(turn);
    if (place >= 0) this.turns.length = place;
  }

  ask(question) {
    const turn = { question, answers: [] };
    this.turns.push(turn);
    return turn;
  }

  /** The messages that ask for the answer of `turn` in `column`. Failed and empty answers are not repeated. */
  messages(system, turn, column) {
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const before of this.turns) {
      if (before === turn) break;
      const answer = before.answers[column];
      if (!answer?.text) continue;
      messages.push({ role: "user", content: before.question }, { role: "assistant", content: answer.text });
    }
    messages.push({ role: "user", content: turn.question });
    return messages;
  }
}
