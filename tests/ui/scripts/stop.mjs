// Stopping a long answer: what came stays, the composer is there again.

import assert from "node:assert/strict";
import { ask, open } from "./asking.mjs";

export default async function ({ page, url }) {
  await open(page, url);
  const answer = await ask(page, "tell me more", { wait: false });
  await answer.locator(".markdown", { hasText: "word word" }).last().waitFor();
  assert.equal(await answer.getAttribute("aria-busy"), "true");
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  assert.match(await answer.locator(".figures").innerText(), /stopped$/);
  assert.match(await answer.locator(".markdown").last().innerText(), /^word word/);
  assert.equal(await answer.getByRole("alert").count(), 0);
}
