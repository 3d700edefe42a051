// Addresses: what a dashboard's address is made of, and how a click inside the page becomes a new view without a reload.
import { rangeUtil } from '@grafana/data';
import { locationService } from '@grafana/runtime';
import { useEffect, useState } from 'react';
import type { Mode } from '../runtime';

export interface View {
  path: string;
  uid?: string;
  visit: number;
}

/** Return the dashboard's uid in a path such as /d/tachograph-run/run. */
export const uidOf = (path: string): string | undefined => /^\/d\/([^/]+)/.exec(path)?.[1];

const view = (visit: number): View => {
  const path = locationService.getLocation().pathname;
  return { path, uid: uidOf(path), visit };
};

/** Return where the page is; `visit` changes with each link followed and each step back, not with each variable set. */
export function useView(): View {
  const [current, setCurrent] = useState(() => view(0));
  useEffect(() => {
    const move = () => setCurrent(({ visit }) => view(visit + 1));
    const click = (event: MouseEvent) => {
      const link = (event.target as Element | null)?.closest?.('a');
      const held = event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
      if (!link || held || event.defaultPrevented || (link.target && link.target !== '_self')) {
        return;
      }
      const url = new URL(link.href, location.href);
      if (url.origin === location.origin && (uidOf(url.pathname) || url.pathname === '/')) {
        event.preventDefault();
        locationService.push(url.pathname + url.search);
        move();
        window.scrollTo(0, 0);
      }
    };
    document.addEventListener('click', click);
    window.addEventListener('popstate', move);
    return () => {
      document.removeEventListener('click', click);
      window.removeEventListener('popstate', move);
    };
  }, []);
  return current;
}

/** Return the address of a dashboard that keeps this view's time, variables and colours. */
export function beside(uid: string, keepTime = true, keepVariables = true): string {
  const kept = new URLSearchParams();
  for (const [name, value] of locationService.getSearch()) {
    const time = ['from', 'to', 'timezone', 'refresh'].includes(name);
    if ((time && keepTime) || (name.startsWith('var-') && keepVariables)) {
      kept.append(name, value);
    }
  }
  return `/d/${uid}${kept.size ? `?${kept}` : ''}`;
}

/** Return this address with other parameters. */
export function instead(values: Record<string, string>): string {
  const words = locationService.getSearch();
  Object.entries(values).forEach(([name, value]) => words.set(name, value));
  return `${locationService.getLocation().pathname}?${words}`;
}

/** Return the time range of the address, else the dashboard's own, in Unix seconds. */
export function range(own: { from: string; to: string }): [from: number, to: number] {
  const words = locationService.getSearch();
  const end = (name: 'from' | 'to') => {
    const given = words.get(name) ?? own[name];
    return /^\d+$/.test(given) ? Number(given) : given;
  };
  const { from, to } = rangeUtil.convertRawToRange({ from: end('from') as any, to: end('to') as any });
  return [from.valueOf() / 1000, to.valueOf() / 1000];
}

const KEY = 'tachograph-theme';

/** Return the colours asked for: ?theme=light as in Grafana, else the last choice, else dark. */
export function chosenMode(): Mode {
  const asked = new URLSearchParams(location.search).get('theme') ?? localStorage.getItem(KEY);
  return asked === 'light' ? 'light' : 'dark';
}

/** Grafana's libraries read their colours once: a change loads the page anew. */
export function changeMode(mode: Mode): void {
  localStorage.setItem(KEY, mode);
  const words = new URLSearchParams(location.search);
  words.delete('theme');
  location.assign(`${location.pathname}${words.size ? `?${words}` : ''}`);
}
