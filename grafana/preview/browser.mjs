// Drives Chromium over the viewer: opens pages, waits until they are drawn, tells what went wrong on them.
import fs from 'node:fs';
import { chromium } from 'playwright-core';

const PLACES = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];
const PATIENCE_MS = 180_000; // a busy machine has two cores for all of it
const QUIET_MS = 400; // no query open and none new for this long: all panels have what they draw

/** Return the path of Chromium: $CHROMIUM, else where distributions put it. */
export function chromiumPath() {
  const found = [process.env.CHROMIUM, ...PLACES].find((path) => path && fs.existsSync(path));
  if (!found) {
    throw new Error('no Chromium: apt-get install --no-install-recommends chromium, or set CHROMIUM to its path');
  }
  return found;
}

export function launch() {
  const args = [
    '--disable-gpu',
    '--in-process-gpu', // a process of its own would raise its priority over all else on a busy machine
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1', // nothing but loopback is ever asked for
  ];
  if (process.getuid?.() === 0) {
    args.push('--no-sandbox'); // Chromium refuses to sandbox for root
  }
  return chromium.launch({ executablePath: chromiumPath(), args });
}

/** Open a page with what it says of itself collected in `page.problems`. */
export async function open(browser, { width = 1280, height = 900 } = {}) {
  const page = await browser.newPage({ viewport: { width, height }, timezoneId: 'UTC', locale: 'en-GB' });
  page.setDefaultTimeout(PATIENCE_MS);
  page.problems = [];
  page.on('console', (message) => message.type() === 'error' && page.problems.push(message.text()));
  page.on('pageerror', (error) => page.problems.push(String(error.stack ?? error)));
  return page;
}

/** Wait until the view is drawn: a dashboard or a notice stands there and no query is open or has just ended. */
export async function settled(page, timeout = PATIENCE_MS) {
  await page.evaluate(() => delete window.__asked);
  await page.waitForFunction(
    (quiet) => {
      const { tachographPreview: trace } = window;
      const dashboard = document.querySelector('[data-dashboard]');
      if (!trace || !(dashboard ?? document.querySelector('[role=alert]'))) {
        return false;
      }
      const height = window.innerHeight;
      const items = [...(dashboard?.querySelectorAll('[data-griditem-key]') ?? [])];
      const inSight = items.filter((item) => {
        const { top, bottom } = item.getBoundingClientRect();
        return bottom > 0 && top < height;
      });
      const undrawn = (item) => !item.querySelector('[data-preview], [role=alert], [role=heading]'); // a row has a heading
      const busy = trace.open > 0 || (dashboard && !items.length) || inSight.some(undrawn);
      const now = performance.now();
      if (busy || window.__asked !== trace.queries.length) {
        window.__asked = trace.queries.length;
        window.__since = now;
        return false;
      }
      return now - window.__since > quiet;
    },
    QUIET_MS,
    { timeout, polling: 50 },
  );
}

/** Open every row and make the window as high as the dashboard, so that every panel is drawn: those out of sight wait. */
export async function unfold(page) {
  await heighten(page);
  for (const closed = page.getByRole('button', { name: 'Expand row' }); await closed.count(); ) {
    await closed.last().click(); // from below: what an open row pushes down is still in sight
  }
  await heighten(page);
}

async function heighten(page) {
  const { width, height } = page.viewportSize();
  const full = await page.evaluate(() => document.documentElement.scrollHeight);
  await page.setViewportSize({ width, height: Math.max(height, full) });
  await settled(page);
}

/** Return what stands on the page. */
export async function state(page) {
  const seen = await page.evaluate(() => ({
    address: location.pathname + location.search,
    title: document.title,
    dashboard: document.querySelector('[data-dashboard]')?.dataset.dashboard ?? null,
    notices: [...document.querySelectorAll('[role=alert]')].map((one) => one.innerText),
    panels: [...document.querySelectorAll('[data-viz-panel-key]')].map((panel) => ({
      key: panel.dataset.vizPanelKey,
      text: panel.innerText,
      failed: panel.querySelector('[data-preview=failed]')?.innerText ?? null,
      empty: Boolean(panel.querySelector('[data-preview=empty]')),
      drawn: Boolean(panel.querySelector('[data-preview=drawn]')),
    })),
    links: [...document.querySelectorAll('main a[href]')].map((link) => ({ text: link.innerText, href: link.href })),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    trace: window.tachographPreview ?? { open: 0, queries: [], errors: ['the viewer did not start'] },
  }));
  return { ...seen, problems: page.problems };
}
