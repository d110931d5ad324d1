// Status and usage, as tables.

import assert from "node:assert/strict";

export default async function ({ page, url }) {
  const rows = (name) => page.getByRole("region", { name }).locator("tbody tr").allInnerTexts();
  await page.goto(`${url}/#status`);
  await page.getByRole("heading", { name: "Models" }).waitFor();
  assert.equal(await page.locator("nav [aria-current=page]").innerText(), "Status");
  const status = { models: await rows("Models"), errors: await rows("Last errors"), times: await rows("Times of") };
  const tiles = Object.fromEntries(
    await page.locator(".tile").evaluateAll((all) => all.map((one) => [one.children[0].textContent, one.children[1].textContent])),
  );
  const meter = await page.getByLabel("KV cache in use").evaluate((one) => one.value);
  await page.waitForTimeout(4500);
  const trend = await page.locator(".sparkline").getAttribute("aria-label");
  await page.getByRole("link", { name: "Usage" }).click();
  await page.getByRole("heading", { name: "Your usage" }).waitFor();
  const byDay = await rows("Your usage");
  await page.getByLabel("Sum up by").selectOption({ label: "Model" });
  await page.waitForFunction(() => document.querySelector("#view-usage thead th")?.textContent === "Model");
  return { status, tiles, meter, trend, byDay, byModel: await rows("Your usage") };
}
