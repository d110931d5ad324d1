// What an operator does with engines; and that nobody else is offered it.

import assert from "node:assert/strict";

export default async function ({ page, url, folder, name }) {
  const section = page.getByRole("region", { name: "Engines" }).first();
  const state = (replica) => section.locator("tr", { has: page.locator("th", { hasText: replica }) }).locator(".pill");
  const becomes = async (replica, word) => {
    await page.waitForFunction(
      ([id, wanted]) =>
        [...document.querySelectorAll("section[aria-label=Engines] tbody tr")].some(
          (row) => row.children[0].textContent === id && row.querySelector(".pill").textContent === wanted,
        ),
      [replica, word],
    );
  };
  const use = async (key) => {
    await page.getByRole("button", { name: "API key" }).click();
    await page.getByLabel("Key", { exact: true }).fill(key);
    await page.getByRole("button", { name: "Use" }).click();
  };
  const press = async (action, replica, answer = action) => {
    await page.getByRole("button", { name: `${action} ${replica}`, exact: true }).click();
    const dialog = page.getByRole("dialog", { name: `${action} ${replica}?`, exact: true });
    await dialog.waitFor();
    if (folder && answer === "Cancel") await page.screenshot({ path: `${folder}/${name}-confirm.png` });
    await dialog.getByRole("button", { name: answer, exact: true }).click();
    await dialog.waitFor({ state: "hidden" });
  };

  await page.goto(`${url}/#status`);
  await page.getByLabel("Key", { exact: true }).fill("user");
  await page.getByRole("button", { name: "Use" }).click();
  await page.getByRole("heading", { name: "Models" }).waitFor();
  await page.waitForTimeout(2500);
  assert.equal(await page.getByRole("heading", { name: "Engines" }).count(), 0, "a user is offered nothing");

  await use("operator");
  await section.waitFor();
  const before = await section.locator("tbody tr").allInnerTexts();
  await press("Drain", "chat#0", "Cancel");
  await page.waitForTimeout(300);
  assert.equal(await state("chat#0").innerText(), "loaded", "cancelled is not done");
  await page.keyboard.press("Escape");
  await press("Drain", "chat#0");
  await becomes("chat#0", "draining");
  assert.equal(await state("chat#1").innerText(), "loaded");
  if (folder) await page.screenshot({ path: `${folder}/${name}-engines.png`, fullPage: true });
  await press("Load", "chat#0");
  await becomes("chat#0", "loaded");
  await press("Restart", "chat#1");
  await becomes("chat#1", "loaded");
  await press("Unload", "chat#1");
  await becomes("chat#1", "unloaded");
  await page.getByRole("button", { name: "Load chat#1", exact: true }).focus();
  await page.waitForTimeout(2500);
  assert.equal(
    await page.evaluate(() => document.activeElement.dataset.act),
    "load chat#1",
    "drawing it anew leaves the keyboard where it was",
  );
  await press("Load", "chat#2");
  await page.waitForFunction(() => document.querySelector("section[aria-label=Engines]").textContent.includes("is damaged"));
  const sideways = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  assert.equal(sideways, false, "it fits the window");

  await use("other");
  await section.getByText("None.").waitFor();
  await page.waitForTimeout(2500);
  const problems = await page.getByRole("alert").filter({ visible: true }).allInnerTexts();
  assert.deepEqual(problems.filter((one) => !one.includes("is damaged")), [], "an operator of no model is told so");
  return { before };
}
