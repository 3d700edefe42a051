// Reads visits as JSON from standard input and tells, as JSON, what each saw: [{url, width?, height?, steps?, folded?, shot?}, …]
//   folded: only what is in sight is drawn; shot: a PNG to write; steps: what is clicked then, one after the other:
//   [role, name], or ['way', path] for the first link of the dashboard to that path
import { launch, open, settled, state, unfold } from './browser.mjs';

const STEP_MS = 20_000;

async function press(page, role, name) {
  await page.getByRole(role, { name, exact: true }).first().click({ timeout: STEP_MS });
  return name;
}

async function follow(page, path) {
  return page.evaluate((wanted) => {
    const link = [...document.querySelectorAll('main a[href]')].find((one) => new URL(one.href).pathname === wanted);
    if (!link) {
      throw new Error(`no link to ${wanted}`);
    }
    link.click();
    return link.href;
  }, path);
}

const input = [];
for await (const piece of process.stdin) {
  input.push(piece);
}
const browser = await launch();
const seen = [];
try {
  for (const visit of JSON.parse(Buffer.concat(input).toString())) {
    const page = await open(browser, visit);
    const clicked = [];
    try {
      await page.goto(visit.url);
      await settled(page);
      if (!visit.folded) {
        await unfold(page);
      }
      for (const [role, name] of visit.steps ?? []) {
        clicked.push(await (role === 'way' ? follow(page, name) : press(page, role, name)));
        await settled(page);
      }
      if (visit.shot) {
        await page.screenshot({ path: visit.shot });
      }
      seen.push({ ...(await state(page)), clicked, stopped: null });
    } catch (error) {
      seen.push({ ...(await state(page)), clicked, stopped: String(error) });
    }
    await page.close();
  }
} finally {
  await browser.close();
}
console.log(JSON.stringify(seen));
