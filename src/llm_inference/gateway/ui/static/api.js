// The server, as this page calls it: every request carries the key, every failure is an ApiError in words.

import { events } from "./sse.js";

const STORED_KEY = "llm-inference.key";

export class ApiError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Sends "denied" when a key is missing or wrong, and "key" when there is another one. */
export class Api extends EventTarget {
  constructor(prefix) {
    super();
    this.prefix = prefix;
    this.root = new URL(".", document.baseURI); // the page may lie below a path of a proxy
  }

  get key() {
    return sessionStorage.getItem(STORED_KEY) ?? "";
  }

  /** Kept until the tab is closed, and sent to this server alone. */
  set key(value) {
    if (value) sessionStorage.setItem(STORED_KEY, value);
    else sessionStorage.removeItem(STORED_KEY);
    this.dispatchEvent(new Event("key"));
  }

  /** The address of an OpenAI route, such as "chat/completions". */
  address(route) {
    return new URL(`${this.prefix}/${route}`.slice(1), this.root).href;
  }

  /** The base address that OpenAI's clients want. */
  get base() {
    return new URL(this.prefix.slice(1), this.root).href.replace(/\/$/, "");
  }

  async models() {
    const list = await (await this.#send(this.address("models"))).json();
    return list.data.map((card) => card.id);
  }

  async status() {
    return (await this.#send(new URL("status.json", this.root))).json();
  }

  /** For operators: every replica, and each gateway worker's part of the load. */
  async replicas() {
    return (await this.#send(this.address("admin/models"))).json();
  }

  /** For operators: load, unload, restart or drain a replica. It goes on after the answer. */
  async act(action, model, replica) {
    await this.#send(this.address(`admin/models/${action}`), {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model, replica, wait: false }),
    });
  }

  async usage(by, days) {
    const address = new URL("usage.json", this.root);
    address.search = new URLSearchParams({ by, days });
    return (await this.#send(address)).json();
  }

  /** Yields the chunks of a streamed chat completion. Raises ApiError; an abort of `signal` is an AbortError. */
  async *chat(body, signal) {
    const response = await this.#send(this.address("chat/completions"), {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    let ended = false;
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message, 200, chunk.error.code);
      yield chunk;
    }
    if (!ended) throw new ApiError("The connection broke before the answer was complete.");
  }

  async #send(address, options = {}) {
    const headers = { ...options.headers };
    if (this.key) headers.authorization = `Bearer ${this.key}`;
    let response;
    try {
      response = await fetch(address, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached.");
    }
    if (response.ok) return response;
    const error = await failure(response);
    if (response.status === 401) this.dispatchEvent(new Event("denied"));
    throw error;
  }
}

async function failure(response) {
  try {
    const { error } = await response.json();
    return new ApiError(error.message, response.status, error.code);
  } catch {
    return new ApiError(`The server answered with status ${response.status}.`, response.status);
  }
}
