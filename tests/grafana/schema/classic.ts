// The Classic dashboard as Grafana's own published types have it, for each major; grafana-N.json beside are made from
// this file by make.sh. Narrower than Grafana's where that finds mistakes (a panel's options belong to its type), wider
// where a data source adds its own keys (a target, an annotation) and where the types ask for what Grafana fills in
// (an option left out).
import type * as raw from './types';
import type { Options as BarGaugeOptions } from './types/bargauge';
import type { Options as GaugeOptions } from './types/gauge';
import type { Options as HeatmapOptions, FieldConfig as HeatmapFields } from './types/heatmap';
import type { Options as StateOptions, FieldConfig as StateFields } from './types/statetimeline';
import type { Options as StatOptions } from './types/stat';
import type { Options as TableOptions, FieldConfig as TableFields } from './types/table';
import type { Options as TextOptions } from './types/text';
import type { Options as LineOptions, FieldConfig as LineFields } from './types/timeseries';

// Grafana reads spanNulls of a state timeline, its types leave it out.
type StateLines = StateFields & { spanNulls?: boolean | number };
type StateLayout = Omit<StateOptions, 'legend'> & { legend: Partial<StateOptions['legend']> };

interface Target {
  refId: string;
  datasource: raw.DataSourceRef;
  expr: string;
  legendFormat: string;
  format: 'table' | 'time_series' | 'heatmap';
  instant: boolean;
  range: boolean;
  interval?: string;
}

interface Override {
  matcher: raw.MatcherConfig;
  properties: { id: string; value: unknown }[];
}

interface Defaults<Fields> extends Omit<raw.FieldConfig, 'custom'> {
  custom?: Partial<Fields>;
}

interface Panel<Type extends string, Options, Fields> extends Omit<raw.Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> {
  type: Type;
  options: Partial<Options>;
  targets: Target[];
  fieldConfig: { defaults: Defaults<Fields>; overrides: Override[] };
}

interface Text extends Omit<raw.Panel, 'type' | 'options'> {
  type: 'text';
  options: TextOptions;
}

interface Annotation extends raw.AnnotationQuery {
  expr: string;
  step: string;
  titleFormat: string;
  textFormat: string;
}

interface Variable extends Omit<raw.VariableModel, 'current'> {
  current: Partial<raw.VariableOption>;
  definition?: string;
}

export interface Whole extends Omit<raw.Dashboard, 'panels' | 'annotations' | 'templating'> {
  panels: (
    | Panel<'timeseries', LineOptions, LineFields>
    | Panel<'state-timeline', StateLayout, StateLines>
    | Panel<'heatmap', HeatmapOptions, HeatmapFields>
    | Panel<'stat', StatOptions, {}>
    | Panel<'gauge', GaugeOptions, {}>
    | Panel<'bargauge', BarGaugeOptions, {}>
    | Panel<'table', TableOptions, TableFields>
    | Text
    | raw.RowPanel
  )[];
  annotations: { list: Annotation[] };
  templating: { list: Variable[] };
}
