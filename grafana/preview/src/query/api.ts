// Prometheus' HTTP API, through the server of this page.
import { note, trace } from '../trace';

export type Labels = Record<string, string>;

export interface Row {
  metric: Labels;
  value?: [number, string];
  values?: Array<[number, string]>;
}

/** Return the data of an answer; throw what Prometheus, or the server in its place, said was wrong. */
export async function ask<T>(path: string, given: Record<string, string>, signal?: AbortSignal): Promise<T> {
  const response = await fetch(`/api/prometheus/api/v1/${path}`, {
    method: 'POST',
    body: new URLSearchParams(given),
    signal,
  });
  const answer = await response.json();
  if (answer.status !== 'success') {
    throw new Error(answer.error ?? `the server answered ${response.status}`);
  }
  return answer.data;
}

/** For how long a line goes on after its last sample, instead of 300 s; as in exporter/tachograph/servers/prometheus_api.py. */
const LOOKBACK = '90s';

/** Return the rows of a query, and note it. */
export async function rows(path: string, given: Record<string, string>): Promise<Row[]> {
  const began = performance.now();
  trace.open += 1;
  const asked = { expression: given.query, seconds: 0, series: 0 };
  try {
    const found = (await ask<{ result: Row[] }>(path, { ...given, lookback_delta: LOOKBACK })).result;
    note(trace.queries, { ...asked, seconds: (performance.now() - began) / 1000, series: found.length });
    return found;
  } catch (error) {
    note(trace.queries, { ...asked, seconds: (performance.now() - began) / 1000, error: String(error) });
    throw error;
  } finally {
    trace.open -= 1;
  }
}

/** Return the values of a label, of all series or of those that match. */
export async function labelValues(label: string, match: string | undefined, start: number, end: number): Promise<string[]> {
  const words = new URLSearchParams({ start: String(start), end: String(end) });
  if (match) {
    words.set('match[]', match);
  }
  const response = await fetch(`/api/prometheus/api/v1/label/${encodeURIComponent(label)}/values?${words}`);
  const answer = await response.json();
  if (answer.status !== 'success') {
    throw new Error(answer.error ?? `the server answered ${response.status}`);
  }
  return answer.data;
}
