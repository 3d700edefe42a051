// The services that Grafana's libraries expect to find, each as small as this viewer allows.
import {
  createTheme,
  DataQueryRequest,
  DataSourceApi,
  EventBusSrv,
  LoadingState,
  locationUtil,
  PanelData,
} from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import * as runtime from '@grafana/runtime';
import { loadResources } from '@grafana/scenes';
import { catchError, concat, from, map, Observable, of } from 'rxjs';
import { Prometheus, SETTINGS } from './query/datasource';
import { fillRegistries } from './registries';
import { registerPanels } from './panels';

function run(source: DataSourceApi, request: DataQueryRequest): Observable<PanelData> {
  const of_all = { timeRange: request.range, request, annotations: [] };
  const answer = from(source.query(request) as Promise<{ data: PanelData['series'] }>).pipe(
    map(({ data }) => ({ ...of_all, state: LoadingState.Done, series: data })),
    catchError((error: Error) => {
      const said = { message: error.message };
      return of({ ...of_all, state: LoadingState.Error, series: [], error: said, errors: [said] });
    }),
  );
  // A panel that got its marks first counts as done and empty: an empty answer would be no news, and never be drawn.
  return concat(of({ ...of_all, state: LoadingState.Loading, series: [] }), answer);
}

export type Mode = 'dark' | 'light';

/** Give Grafana's libraries all they need; must end before anything of theirs is drawn. */
export async function startRuntime(mode: Mode): Promise<void> {
  await initPluginTranslations('grafana', []);
  await initPluginTranslations('grafana-scenes', [loadResources]);
  const theme = createTheme({ colors: { mode } });
  Object.assign(runtime.config, { theme2: theme, theme: theme.v1, featureToggles: {}, panels: {} });
  document.body.style.background = theme.colors.background.canvas;
  locationUtil.initialize({
    config: { appSubUrl: '' } as any,
    getTimeRangeForUrl: () => ({ from: 'now-30m', to: 'now' }),
    getVariablesUrlParams: () => ({}),
  });
  const source = new Prometheus();
  runtime.setDataSourceSrv({
    get: () => Promise.resolve(source as any),
    getList: ({ pluginId } = {}) => (pluginId === undefined || pluginId === SETTINGS.type ? [SETTINGS] : []),
    getInstanceSettings: () => SETTINGS,
    reload: () => undefined,
    registerRuntimeDataSource: () => undefined,
  });
  runtime.setRunRequest(run as any);
  runtime.setAppEvents(new EventBusSrv());
  runtime.setEchoSrv(new runtime.FakeEchoSrv());
  runtime.setTemplateSrv({
    getVariables: () => [],
    replace: (text = '') => text,
    containsTemplate: () => false,
    updateTimeRange: () => undefined,
  });
  runtime.setPluginImportUtils({
    importPanelPlugin: (id) => Promise.reject(new Error(`this viewer cannot draw panels of type ${id}`)),
    getPanelPluginFromCache: () => undefined,
  });
  fillRegistries();
  registerPanels();
}
