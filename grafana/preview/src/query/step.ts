// Resolution of a query, as Grafana's Prometheus data source chooses it. There the scrape interval is configured.
import { rows } from './api';

/** The usual scrape interval of the exporters that are there for five minutes, to the second. */
const SCRAPED =
  'round(quantile(0.5, 300 / count_over_time(tachograph_exporter_info[5m]) and tachograph_exporter_info offset 5m))';
const SHIPPED = 5; // prometheus/prometheus.yml
let scrape: Promise<number> | undefined;

/** Return the scrape interval in seconds, as the samples before `at` show; the shipped one while they are too few. */
export function scrapeSeconds(at: number): Promise<number> {
  const unknown = () => {
    scrape = undefined; // asked again with the next query
    return SHIPPED;
  };
  scrape ??= rows('query', { query: SCRAPED, time: String(at) }).then(
    ([row]) => (row ? Number(row.value![1]) : unknown()),
    unknown,
  );
  return scrape;
}

export interface Resolution {
  start: number;
  end: number;
  step: number;
}

/** Return the step that gives at most `points` samples, and the range snapped to it. All in seconds. */
export function resolution(from: number, to: number, intervalSeconds: number, smallest: number): Resolution {
  const least = Math.ceil((to - from) / 11000); // Prometheus refuses to return more samples of a series
  const step = Math.max(intervalSeconds, smallest, least, 1);
  return { start: Math.floor(from / step) * step, end: Math.floor(to / step) * step, step };
}

/** Return the expression with Grafana's own window names filled in. */
export function withWindows(expression: string, from: number, to: number, step: number, scrape: number): string {
  const rate = Math.max(step + scrape, 4 * scrape);
  const span = Math.max(1, Math.round(to - from));
  const values: Record<string, string> = {
    __rate_interval: `${rate}s`,
    __interval: `${step}s`,
    __interval_ms: String(step * 1000),
    __range: `${span}s`,
    __range_s: String(span),
    __range_ms: String(span * 1000),
  };
  return expression.replace(/\$(?:\{(__\w+)\}|(__\w+))/g, (whole, braced, plain) => values[braced ?? plain] ?? whole);
}

/** Return the seconds of a duration such as "10s" or "1m", else `otherwise`. */
export function seconds(text: string | undefined, otherwise: number): number {
  const found = /^(\d+)\s*(s|m|h|d)$/.exec(text ?? '');
  return found ? Number(found[1]) * { s: 1, m: 60, h: 3600, d: 86400 }[found[2] as 's']! : otherwise;
}
