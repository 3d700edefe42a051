// The Classic dashboard as Grafana's own published types have it; classic.json beside is made from this file:
//   npm install --no-save @grafana/schema@12.4.10 ts-json-schema-generator@2 typescript@7
//   npx ts-json-schema-generator --path classic.ts --type Whole --no-type-check --no-top-ref --jsDoc none --minify --out classic.json
// Narrower than Grafana's where that finds mistakes (a panel's options belong to its type), wider where a data source
// adds its own keys (a target, an annotation) and where the types ask for what Grafana fills in (an option left out).
import type * as raw from '@grafana/schema/dist/types/raw/dashboard/x/types.gen';
import type { Options as TableOptions, FieldConfig as TableFields } from '@grafana/schema/dist/types/raw/composable/table/panelcfg/x/types.gen';
import type { Options as StatOptions } from '@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen';
import type { Options as LineOptions, FieldConfig as LineFields } from '@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';

interface Target {
  refId: string;
  datasource: raw.DataSourceRef;
  expr: string;
  legendFormat: string;
  format: 'table' | 'time_series';
  instant: boolean;
  range: boolean;
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
    | Panel<'stat', StatOptions, {}>
    | Panel<'table', TableOptions, TableFields>
    | raw.RowPanel
  )[];
  annotations: { list: Annotation[] };
  templating: { list: Variable[] };
}
