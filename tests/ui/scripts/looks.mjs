// Screenshots of every view, and what must hold for each: nothing wider than the window, no text without contrast.

import assert from "node:assert/strict";
import path from "node:path";
import { ask, open } from "./asking.mjs";

export default async function ({ page, url, folder, name, questions, settings = {}, compare = false }) {
  const picture = (view) => page.screenshot({ path: path.join(folder, `${name}-${view}.png`) });
  await open(page, url);
  await picture("empty");
  await check(page);
  if (compare) await page.getByLabel("Compare with").check();
  if (!(await page.locator(".panel").evaluate((panel) => panel.open))) await page.getByText("Settings").click();
  for (const [label, value] of Object.entries(settings)) await page.getByLabel(label, { exact: true }).fill(value);
  if ((page.viewportSize().width) < 900) await page.getByText("Settings").click();
  for (const question of questions) await ask(page, question);
  await check(page);
  await picture("playground");
  if (!(await page.locator(".panel").evaluate((panel) => panel.open))) await page.getByText("Settings").click();
  await page.getByLabel("Token probabilities").check();
  await page.getByText("More parameters").click();
  await check(page);
  await picture("settings");
  if ((page.viewportSize().width) < 900) await page.getByText("Settings").click();
  const answer = await ask(page, questions[0]);
  const tokens = answer.locator(".token");
  await tokens.nth(3).scrollIntoViewIfNeeded();
  await tokens.nth(3).hover();
  await check(page);
  await picture("tokens");
  await page.getByRole("button", { name: "Code", exact: true }).click();
  await picture("code");
  await page.getByRole("button", { name: "Close" }).click();
  await page.getByRole("link", { name: "Status" }).click();
  await page.getByRole("heading", { name: "Models" }).waitFor();
  await page.waitForTimeout(4500); // two looks make a rate
  await check(page);
  await picture("status");
  await page.getByRole("link", { name: "Usage" }).click();
  await page.locator("#view-usage .tables > *").first().waitFor();
  await check(page);
  await picture("usage");
}

async function check(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  const widest = await page.evaluate(() =>
    [...document.querySelectorAll("main *, header *")]
      .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth && !one.closest(".scroll, pre"))
      .map((one) => `${one.tagName}.${one.className}`),
  );
  assert.ok(wide <= 0, `the page is ${wide} pixels wider than the window: ${widest}`);
  const unlabelled = await page.evaluate(() =>
    [...document.querySelectorAll("input, select, textarea")]
      .filter((one) => one.checkVisibility() && !one.labels?.length && !one.getAttribute("aria-label"))
      .map((one) => one.outerHTML),
  );
  assert.deepEqual(unlabelled, [], "fields without a label");
}
