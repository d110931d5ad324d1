// A conversation with an engine that repeats what it is told: asking, editing, regenerating, comparing, errors.

import assert from "node:assert/strict";
import { ask, open } from "./asking.mjs";

export default async function ({ page, url }) {
  await open(page, url);
  const bodies = [];
  page.on("request", (request) => request.url().endsWith("/chat/completions") && bodies.push(request.postDataJSON()));
  const says = (answer) => answer.locator(".markdown").last().innerText();

  // Asking; the figures; what is sent.
  let answer = await ask(page, "first question");
  assert.equal(await says(answer), "first question");
  assert.match(await answer.locator(".figures").innerText(), /^first token [\d.]+ m?s · [\d,.]+ tokens\/s · 14 tokens$/);
  assert.deepEqual(bodies.at(-1), {
    model: "fake",
    messages: [{ role: "user", content: "first question" }],
    stream: true,
    stream_options: { include_usage: true },
  });
  assert.equal(await page.locator("#announcer").innerText(), "fake has answered");

  // The history, the system prompt and the parameters go with the next one.
  await page.getByLabel("System prompt").fill("Be kind.");
  await page.getByLabel("Temperature").fill("0.5");
  await page.getByText("More parameters").click();
  await page.getByLabel("Top k").fill("7");
  await page.getByLabel("Stop at").fill("END\nFINIS");
  await ask(page, "second");
  const { messages, ...fields } = bodies.at(-1);
  assert.deepEqual(messages.map((one) => one.content), ["Be kind.", "first question", "first question", "second"]);
  assert.deepEqual([fields.temperature, fields.top_k, fields.stop], [0.5, 7, ["END", "FINIS"]]);

  // Only the last answer can be regenerated.
  assert.equal(await page.locator(".regenerate:visible").count(), 1);
  await page.getByRole("button", { name: "Regenerate" }).click();
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  assert.equal(bodies.length, 3);
  assert.deepEqual(bodies[2].messages, bodies[1].messages);

  // Editing the first question forgets what came after it; Escape forgets the edit.
  await page.getByRole("button", { name: "Edit" }).first().click();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Edit" }).first().click();
  await page.getByLabel("Edit the message").fill("another question");
  await page.keyboard.press("Enter");
  await page.locator(".answer .markdown", { hasText: "another question" }).waitFor();
  assert.equal(await page.locator(".turn").count(), 1);
  assert.deepEqual(bodies.at(-1).messages.map((one) => one.content), ["Be kind.", "another question"]);

  // A value that cannot be is said before anything is sent.
  const sent = bodies.length;
  await page.getByLabel("Temperature").fill("-1");
  await ask(page, "not sent", { wait: false });
  assert.match(await page.locator(".talk > .problem").innerText(), /^Temperature: /);
  assert.equal(bodies.length, sent);
  await page.getByLabel("Temperature").fill("");

  // Shift+Enter is a new line; Enter sends.
  await page.getByLabel("Message", { exact: true }).fill("one");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("two");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  assert.equal(bodies.at(-1).messages.at(-1).content, "one\ntwo");

  // Two models side by side, each with its own history; an error of one is its own.
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await page.locator(".turn").count(), 0);
  await page.getByLabel("Compare with").check();
  assert.equal(await page.getByLabel("Second model").inputValue(), "broken");
  await ask(page, "both");
  const [left, right] = await page.locator(".answer").all();
  assert.equal(await says(left), "both");
  assert.match(await right.getByRole("alert").innerText(), /fake engine failed/);
  assert.deepEqual([(await left.boundingBox()).y, bodies.at(-1).model], [(await right.boundingBox()).y, "broken"]);

  // Tokens: by pointer and by keys.
  await page.getByLabel("Compare with").uncheck();
  await page.getByLabel("Token probabilities").check();
  answer = await ask(page, "tokens");
  assert.equal(await answer.locator(".token").count(), 6);
  await answer.locator(".token").nth(1).hover();
  const note = answer.locator(".token-note");
  assert.match(await note.innerText(), /^o\s*61 %/);
  await answer.locator(".tokens").focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await note.innerText(), /^k\s*61 %/);
  await answer.getByRole("button", { name: "Tokens" }).click();
  assert.equal(await says(answer), "tokens");
}
