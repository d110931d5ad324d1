// The request of the playground as a program: for a shell, and for OpenAI's Python client.

import { copyButton } from "./clipboard.js";
import { button, h } from "./dom.js";

const STANDARD = new Set([
  "model", "messages", "stream", "temperature", "max_tokens", "top_p", "presence_penalty", "frequency_penalty", "seed",
  "stop", "logprobs", "top_logprobs",
]);

/** A command for bash. With `keyed` it takes the key from the variable LLM_API_KEY: a key is never written out. */
export function curl(address, body, keyed) {
  const key = keyed ? ` \\\n  -H "Authorization: Bearer $LLM_API_KEY"` : "";
  const json = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  return `curl -N '${address}' \\\n  -H "Content-Type: application/json"${key} \\\n  -d '${json}'\n`;
}

export function python(base, body, keyed) {
  const lines = [];
  const extra = {};
  for (const [name, value] of Object.entries(body)) {
    if (name === "stream_options") continue;
    if (STANDARD.has(name)) lines.push(`    ${name}=${literal(value, 1)},\n`);
    else extra[name] = value;
  }
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra, 1)},\n`);
  return `${keyed ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${literal(base)}, api_key=${keyed ? 'os.environ["LLM_API_KEY"]' : '"none"'})
stream = client.chat.completions.create(
${lines.join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
}

/** A JSON value as Python writes it. */
function literal(value, depth = 0) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value); // what JSON escapes in strings, Python reads alike
  const pad = "    ".repeat(depth + 1);
  const end = "    ".repeat(depth);
  if (Array.isArray(value)) {
    return value.length ? `[\n${value.map((one) => `${pad}${literal(one, depth + 1)},\n`).join("")}${end}]` : "[]";
  }
  const pairs = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, depth + 1)}`);
  return `{${pairs.join(", ")}}`;
}

/** Show the programs in a dialog, each with a button that copies it. */
export function showSnippets(api, body) {
  const keyed = api.key !== "";
  const part = (name, text) =>
    h(
      "figure",
      { class: "code" },
      h("figcaption", {}, h("span", {}, name), copyButton(() => text, `Copy ${name}`)),
      h("pre", { tabindex: "0" }, h("code", {}, text)),
    );
  const dialog = h(
    "dialog",
    { class: "wide", "aria-labelledby": "snippet-title", onclose: () => dialog.remove() },
    h("h2", { id: "snippet-title" }, "This request as code"),
    part("curl", curl(api.address("chat/completions"), body, keyed)),
    part("Python", python(api.base, body, keyed)),
    h("p", { class: "buttons" }, button("Close", () => dialog.close())),
  );
  document.body.append(dialog);
  dialog.showModal();
}
