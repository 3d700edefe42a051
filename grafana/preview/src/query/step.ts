// Resolution of a query, as Grafana's Prometheus data source chooses it.

export const SCRAPE_SECONDS = 5; // grafana/provisioning/datasources: timeInterval

export interface Resolution {
  start: number;
  end: number;
  step: number;
}

/** Return the step that gives at most `points` samples, and the range snapped to it. All in seconds. */
export function resolution(from: number, to: number, intervalSeconds: number, smallest = SCRAPE_SECONDS): Resolution {
  const least = Math.ceil((to - from) / 11000); // Prometheus refuses to return more samples of a series
  const step = Math.max(intervalSeconds, smallest, least, 1);
  return { start: Math.floor(from / step) * step, end: Math.floor(to / step) * step, step };
}

/** Return the expression with Grafana's own window names filled in. */
export function withWindows(expression: string, from: number, to: number, step: number): string {
  const rate = Math.max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS);
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
