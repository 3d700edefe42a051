// One page: the header, what is wrong if anything is, and the dashboard that the address names.
import { UrlSyncContextProvider } from '@grafana/scenes';
import { useEffect, useState } from 'react';
import { Dashboard, sceneOf } from '../classic';
import { DashboardScene, Times } from './DashboardScene';
import { Header } from './Header';
import { range, useView, View } from './location';
import { NoSuchDashboard, Notice, Wrong } from './Problem';
import { Check, check, dashboard as load, dashboards, Entry } from './server';
import { locationService } from '@grafana/runtime';

const HOME = 'tachograph-fleet';
const RECHECK_MS = 10_000;

interface Shown {
  visit: number;
  dashboard?: Dashboard;
  scene?: DashboardScene;
  checked?: Check;
  missing?: string;
}

/** The run that the address names outright; a variable that holds several, or all, names none. */
const namedRun = () => {
  const runs = locationService.getSearch().getAll('var-run');
  return runs.length === 1 && runs[0] && !runs[0].startsWith('$__') ? runs[0] : null;
};

async function show({ uid, visit }: View, entries: Entry[]): Promise<Shown> {
  if (!uid) {
    return { visit };
  }
  if (!entries.some((entry) => entry.uid === uid)) {
    const checked = await check(null, ...range({ from: 'now-1h', to: 'now' }));
    return { visit, missing: uid, checked };
  }
  const dashboard = await load(uid);
  const checked = await check(namedRun(), ...range(dashboard.time));
  const blocked = checked.problem && !['rules', 'empty'].includes(checked.problem.about);
  if (blocked) {
    return { visit, dashboard, checked };
  }
  const scene = sceneOf(dashboard);
  // The header starts the refresh before the address is read into the rest of the scene.
  scene.state.refresh.updateFromUrl({ refresh: locationService.getSearch().get('refresh') });
  return { visit, dashboard, checked, scene };
}

export function App() {
  const view = useView();
  const [entries, setEntries] = useState<Entry[]>();
  const [shown, setShown] = useState<Shown>();
  const [failure, setFailure] = useState<string>();

  useEffect(() => {
    dashboards().then(setEntries, (error: Error) => setFailure(error.message));
  }, []);

  useEffect(() => {
    if (!entries) {
      return undefined;
    }
    if (!view.uid && entries.length) {
      const home = entries.find(({ uid }) => uid === HOME) ?? entries[0];
      locationService.replace(`/d/${home.uid}${location.search}`);
      window.dispatchEvent(new PopStateEvent('popstate'));
      return undefined;
    }
    let timer = 0;
    let over = false;
    const attempt = () =>
      show(view, entries).then(
        (found) => {
          if (!over) {
            setShown(found);
            setFailure(undefined);
            if (found.checked?.problem && !found.scene) {
              timer = window.setTimeout(attempt, RECHECK_MS); // what is wrong now may be right in a moment
            }
          }
        },
        (error: Error) => !over && setFailure(`the server of this page does not answer: ${error.message}`),
      );
    attempt();
    return () => {
      over = true;
      window.clearTimeout(timer);
    };
  }, [view, entries]);

  const current = shown?.visit === view.visit ? shown : undefined;
  useEffect(() => {
    document.title = current?.dashboard ? `${current.dashboard.title} – Tachograph` : 'Tachograph dashboards';
  }, [current]);

  return (
    <>
      <Header dashboard={current?.dashboard} entries={entries ?? []} prometheus={shown?.checked?.prometheus ?? ''}>
        {current?.scene && <Times scene={current.scene} />}
      </Header>
      {failure && <Notice>{failure}</Notice>}
      {entries?.length === 0 && <Notice>The server of this page has no dashboards: run make dashboards.</Notice>}
      {current?.checked?.problem && <Wrong problem={current.checked.problem} />}
      {current?.missing && <NoSuchDashboard uid={current.missing} entries={entries ?? []} />}
      {current?.scene && (
        <main data-dashboard={current.dashboard!.uid} style={{ padding: 16, minHeight: '100vh', display: 'flex' }}>
          <UrlSyncContextProvider key={current.visit} scene={current.scene} updateUrlOnInit>
            <current.scene.Component model={current.scene} />
          </UrlSyncContextProvider>
        </main>
      )}
    </>
  );
}
