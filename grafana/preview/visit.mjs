// Reads visits as JSON from standard input and tells, as JSON, what each saw: [{url, width?, height?, steps?, folded?, shot?}, …]
//   steps: one after the other, [role, name] of what is clicked; folded: only what is in sight is drawn; shot: a PNG to write
import { launch, open, settled, state, unfold } from './browser.mjs';

const input = [];
for await (const piece of process.stdin) {
  input.push(piece);
}
const browser = await launch();
const seen = [];
try {
  for (const visit of JSON.parse(Buffer.concat(input).toString())) {
    const page = await open(browser, visit);
    try {
      await page.goto(visit.url);
      await settled(page);
      for (const [role, name] of visit.steps ?? []) {
        await page.getByRole(role, { name, exact: true }).first().click();
        await settled(page);
      }
      if (!visit.folded) {
        await unfold(page);
      }
      if (visit.shot) {
        await page.screenshot({ path: visit.shot });
      }
      seen.push({ ...(await state(page)), stopped: null });
    } catch (error) {
      seen.push({ ...(await state(page)), stopped: String(error) });
    }
    await page.close();
  }
} finally {
  await browser.close();
}
console.log(JSON.stringify(seen));
