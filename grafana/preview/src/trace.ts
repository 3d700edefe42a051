// What the viewer asked and what went wrong: for whoever looks into the console, and for our browser test.

export interface Asked {
  expression: string;
  seconds: number;
  series: number;
  error?: string;
}

export interface Trace {
  open: number;
  queries: Asked[];
  errors: string[];
}

export const trace: Trace = { open: 0, queries: [], errors: [] };
const MOST = 1000; // of each: a view that stays open for days must not grow

export function note<T>(list: T[], entry: T): void {
  list.push(entry);
  if (list.length > MOST) {
    list.splice(0, list.length - MOST);
  }
}

function failed(error: unknown): void {
  const text = String((error as Error)?.stack ?? error);
  if (!text.includes('ResizeObserver loop')) {
    note(trace.errors, text); // the browser's own note that a layout took two passes is no error
  }
}

export function watchErrors(): void {
  window.addEventListener('error', (event) => failed(event.error ?? event.message));
  window.addEventListener('unhandledrejection', (event) => failed(event.reason));
  Object.assign(window, { tachographPreview: trace });
}
