// A dashboard's Classic JSON, and the scene that Grafana's library makes of it.
import { DashboardCursorSync, VariableRefresh } from '@grafana/data';
import {
  behaviors,
  CustomVariable,
  dataLayers,
  DataSourceVariable,
  SceneDataLayerSet,
  SceneDataTransformer,
  SceneGridItem,
  SceneGridItemLike,
  SceneGridLayout,
  SceneGridRow,
  SceneQueryRunner,
  SceneRefreshPicker,
  SceneTimePicker,
  SceneTimeRange,
  SceneVariable,
  SceneVariableSet,
  TextBoxVariable,
  VariableValueSelectors,
  VizPanel,
  ConstantVariable,
  IntervalVariable,
} from '@grafana/scenes';
import { KeptVariable } from './KeptVariable';
import { DashboardScene } from './page/DashboardScene';
import { SOURCE } from './query/datasource';

export interface DashboardLink {
  type: 'dashboards' | 'link';
  title: string;
  tags?: string[];
  url?: string;
  asDropdown?: boolean;
  includeVars?: boolean;
  keepTime?: boolean;
  targetBlank?: boolean;
}

interface Panel {
  id: number;
  type: string;
  title: string;
  description?: string;
  gridPos: { x: number; y: number; w: number; h: number };
  options?: object;
  fieldConfig?: any;
  targets?: any[];
  transformations?: any[];
  transparent?: boolean;
  interval?: string;
  maxDataPoints?: number;
  collapsed?: boolean;
  panels?: Panel[];
}

export interface Dashboard {
  uid: string;
  title: string;
  description?: string;
  tags: string[];
  time: { from: string; to: string };
  timezone?: string;
  refresh?: string;
  graphTooltip?: number;
  timepicker?: { refresh_intervals?: string[] };
  links: DashboardLink[];
  templating: { list: any[] };
  annotations: { list: any[] };
  panels: Panel[];
}

/** Leave out links to Explore, which this viewer does not have. */
function withoutExplore(fieldConfig: any) {
  const overrides = fieldConfig.overrides.map((one: any) => ({
    ...one,
    properties: one.properties.map(({ id, value }: any) => ({
      id,
      value: id === 'links' ? value.filter(({ url }: DashboardLink) => !url?.startsWith('/explore')) : value,
    })),
  }));
  return { ...fieldConfig, overrides };
}

function body(panel: Panel): VizPanel {
  const queries = (panel.targets ?? []).map((target) => ({ ...target, datasource: SOURCE }));
  const runner = new SceneQueryRunner({
    datasource: SOURCE,
    queries,
    maxDataPoints: panel.maxDataPoints,
    minInterval: panel.interval,
  });
  return new VizPanel({
    key: `panel-${panel.id}`,
    title: panel.title,
    description: panel.description,
    pluginId: panel.type,
    options: panel.options ?? {},
    fieldConfig: withoutExplore({ defaults: {}, overrides: [], ...panel.fieldConfig }),
    displayMode: panel.transparent ? 'transparent' : 'default',
    $data: queries.length
      ? new SceneDataTransformer({ $data: runner, transformations: panel.transformations ?? [] })
      : undefined,
  });
}

function item(panel: Panel): SceneGridItem {
  const { x, y, w: width, h: height } = panel.gridPos;
  return new SceneGridItem({ x, y, width, height, isResizable: false, isDraggable: false, body: body(panel) });
}

/** Return the grid's children; what follows an open row, up to the next row, belongs to it. */
export function children(panels: Panel[]): SceneGridItemLike[] {
  const found: SceneGridItemLike[] = [];
  let open: Panel[] | undefined;
  const rows: Array<[row: Panel, inside: Panel[]]> = [];
  for (const panel of panels) {
    if (panel.type === 'row') {
      open = [...(panel.panels ?? [])];
      rows.push([panel, open]);
      open = panel.collapsed ? undefined : open;
    } else if (open) {
      open.push(panel);
    } else {
      found.push(item(panel));
    }
  }
  for (const [row, inside] of rows) {
    found.push(
      new SceneGridRow({
        key: `panel-${row.id}`,
        title: row.title,
        y: row.gridPos.y,
        isCollapsible: true,
        isCollapsed: Boolean(row.collapsed),
        children: inside.map(item),
      }),
    );
  }
  return found;
}

function variable(json: any): SceneVariable {
  const { name, label, description, hide, skipUrlSync, type, query, regex } = json;
  const common = { name, label, description, hide, skipUrlSync };
  const { value = '', text = '' } = json.current ?? {};
  const chosen = { value, text, isMulti: json.multi, includeAll: json.includeAll, allValue: json.allValue };
  switch (type) {
    case 'datasource':
      return new DataSourceVariable({
        ...common,
        pluginId: query,
        regex: regex ?? '',
        ...(query === SOURCE.type && { value: SOURCE.uid, text: 'Prometheus' }),
      });
    case 'query':
      return new KeptVariable({
        ...common,
        ...chosen,
        datasource: SOURCE,
        query,
        regex: regex ?? '',
        sort: json.sort,
        refresh: json.refresh ?? VariableRefresh.onDashboardLoad,
      });
    case 'custom':
      return new CustomVariable({ ...common, ...chosen, query });
    case 'textbox':
      return new TextBoxVariable({ ...common, value: String(value || query || '') });
    case 'constant':
      return new ConstantVariable({ ...common, value: query });
    case 'interval':
      return new IntervalVariable({ ...common, value, intervals: query.split(',') });
    default:
      throw new Error(`this viewer does not know variables of type ${type} ($${name})`);
  }
}

const REFRESH_INTERVALS = ['5s', '10s', '30s', '1m', '5m', '15m'];

/** Return the scene that shows a dashboard. */
export function sceneOf(dashboard: Dashboard): DashboardScene {
  const annotations = dashboard.annotations.list.filter(({ builtIn }) => !builtIn);
  return new DashboardScene({
    key: dashboard.uid,
    $timeRange: new SceneTimeRange({ ...dashboard.time, timeZone: dashboard.timezone || 'browser' }),
    $variables: new SceneVariableSet({ variables: dashboard.templating.list.map(variable) }),
    $data: new SceneDataLayerSet({
      layers: annotations.map(
        (one) =>
          new dataLayers.AnnotationsDataLayer({
            key: `annotation-${one.name}`,
            name: one.name,
            isEnabled: Boolean(one.enable),
            isHidden: Boolean(one.hide),
            query: { ...one, datasource: SOURCE },
          }),
      ),
    }),
    $behaviors: [
      new behaviors.CursorSync({ sync: (dashboard.graphTooltip ?? 0) as DashboardCursorSync }),
      new behaviors.SceneQueryController(),
    ],
    variables: new VariableValueSelectors({}),
    time: new SceneTimePicker({}),
    refresh: new SceneRefreshPicker({
      refresh: dashboard.refresh,
      intervals: dashboard.timepicker?.refresh_intervals ?? REFRESH_INTERVALS,
    }),
    body: new SceneGridLayout({ isLazy: true, children: children(dashboard.panels) }),
  });
}
