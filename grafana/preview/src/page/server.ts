// What the server of this page tells, beside Prometheus' answers.
import { Dashboard } from '../classic';

export interface Entry {
  uid: string;
  title: string;
  description: string;
  tags: string[];
}

/** What is wrong with the Prometheus, or with the run that was asked for; null where nothing is. */
export interface Check {
  prometheus: string;
  problem: null | { about: 'prometheus' | 'rules' | 'run' | 'range' | 'empty'; text: string; nearest: string[] };
}

async function get<T>(url: string): Promise<T> {
  const response = await fetch(url);
  if (!response.ok) {
    throw new Error(`${url}: ${response.status} ${await response.text()}`);
  }
  return response.json();
}

export const dashboards = () => get<Entry[]>('/api/dashboards');

export const dashboard = (uid: string) => get<Dashboard>(`/api/dashboards/${encodeURIComponent(uid)}`);

export function check(run: string | null, from: number, to: number): Promise<Check> {
  const words = new URLSearchParams({ start: String(from), end: String(to) });
  if (run) {
    words.set('run', run);
  }
  return get<Check>(`/api/check?${words}`);
}
