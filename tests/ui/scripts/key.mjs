// A server with keys: the page asks for one, keeps it for the tab, and forgets it when told to.

import assert from "node:assert/strict";
import { ask } from "./asking.mjs";

export default async function ({ page, url, key }) {
  await page.goto(url);
  const dialog = page.getByRole("dialog", { name: "API key" });
  await dialog.getByText("This server wants a key.").waitFor();
  await page.getByLabel("Key", { exact: true }).fill("wrong");
  await page.keyboard.press("Enter");
  await dialog.getByText("does not know this key").waitFor();
  await page.getByLabel("Key", { exact: true }).fill(key);
  await page.keyboard.press("Enter");
  await page.locator("#model-0 option").first().waitFor({ state: "attached" });
  const answer = await ask(page, "hello");
  assert.equal(await answer.locator(".markdown").last().innerText(), "hello");
  await page.reload();
  await page.locator("#model-0 option").first().waitFor({ state: "attached" });
  assert.equal(await dialog.count(), 0);
  await page.getByRole("button", { name: "Code", exact: true }).click();
  const code = await page.locator("dialog.wide").innerText();
  assert.ok(code.includes("LLM_API_KEY") && !code.includes(key), "a key is never written out");
  await page.getByRole("button", { name: "Close" }).click();
  await page.getByRole("link", { name: "Status" }).click();
  await page.getByRole("heading", { name: "Models" }).waitFor();
  await page.getByRole("link", { name: "Usage" }).click();
  await page.getByText("No ledger is kept").waitFor();
  await page.getByRole("button", { name: "API key" }).click();
  await page.getByRole("button", { name: "Forget" }).click();
  await dialog.getByText("This server wants a key.").waitFor();
  assert.deepEqual(await page.evaluate(() => [sessionStorage.length, localStorage.length, document.cookie]), [0, 0, ""]);
}
