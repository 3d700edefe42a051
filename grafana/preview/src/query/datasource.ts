// The one data source: Grafana's interface on one side, this page's server on the other.
import {
  DataFrame,
  DataQueryRequest,
  DataQueryResponse,
  DataSourceApi,
  DataSourceInstanceSettings,
  MetricFindValue,
  ScopedVars,
} from '@grafana/data';
import { sceneGraph, SceneObject } from '@grafana/scenes';
import { of } from 'rxjs';
import { labelValues, rows } from './api';
import { series, table, Target } from './frames';
import { Annotation, marks } from './marks';
import { resolution, scrapeSeconds, seconds, withWindows } from './step';

export const SOURCE = { type: 'prometheus', uid: 'prometheus' };
export const SETTINGS = {
  ...SOURCE,
  name: 'Prometheus',
  isDefault: true,
  jsonData: {},
  meta: { id: 'prometheus', name: 'Prometheus', info: { logos: {} } },
} as unknown as DataSourceInstanceSettings;

/** Escape for a pattern inside a PromQL string, where a backslash is written as two. */
const escaped = (value: string) => value.replace(/\\/g, '\\\\\\\\').replace(/[\^$*+?.()|[\]{}]/g, '\\\\$&');

/** Write a variable's value as Grafana's Prometheus does: several as a pattern, one of several escaped for a pattern. */
function asPromql(value: unknown, variable?: { multi?: boolean; includeAll?: boolean }): string {
  if (Array.isArray(value)) {
    return value.length === 1 ? escaped(value[0]) : `(${value.map(escaped).join('|')})`;
  }
  const text = String(value);
  return variable?.multi || variable?.includeAll ? escaped(text) : text.replace(/\\/g, '\\\\').replace(/"/g, '\\"');
}

function filled(text: string, scoped?: ScopedVars): string {
  const object = (scoped?.__sceneObject?.value as { valueOf(): SceneObject } | undefined)?.valueOf();
  return object ? sceneGraph.interpolate(object, text, scoped, asPromql) : text;
}

type Find = string | { query: string };

export class Prometheus extends DataSourceApi<any> {
  constructor() {
    super(SETTINGS);
    this.interval = '5s';
    this.annotations = {
      prepareAnnotation: (json: Annotation) => ({ ...json, target: { ...json, refId: 'Anno' } }) as any,
      processEvents: (annotation: unknown, frames: DataFrame[]) => of(marks(annotation as Annotation, frames)),
    };
  }

  async query(request: DataQueryRequest<any>): Promise<DataQueryResponse> {
    const annotation = request.targets.find((target) => target.refId === 'Anno');
    if (annotation) {
      return { data: await this.annotate(annotation, request) };
    }
    const asked = request.targets.filter((target: Target) => !target.hide && target.expr);
    const answers = await Promise.all(asked.map((target) => this.answer(target, request, asked.length > 1)));
    return { data: answers.flat() };
  }

  private async answer(target: Target, request: DataQueryRequest<any>, several: boolean) {
    const [from, to] = [request.range.from.valueOf() / 1000, request.range.to.valueOf() / 1000];
    const least = seconds(filled(target.interval ?? '', request.scopedVars), 0);
    const scrape = await scrapeSeconds(to);
    const { start, end, step } = resolution(from, to, Math.max(Math.round(request.intervalMs / 1000), least), scrape);
    const query = filled(withWindows(target.expr, from, to, step, scrape), request.scopedVars);
    const once = target.instant ?? target.format === 'table';
    const found = once
      ? await rows('query', { query, time: String(to) })
      : await rows('query_range', { query, start: String(start), end: String(end), step: String(step) });
    if (target.format === 'table') {
      return [table(target, found, several)];
    }
    return found.map((row) => series(target, row, step));
  }

  private async annotate(annotation: Annotation & Target, request: DataQueryRequest<any>) {
    const [from, to] = [request.range.from.valueOf() / 1000, request.range.to.valueOf() / 1000];
    const { start, end, step } = resolution(from, to, Math.round(request.intervalMs / 1000), seconds(annotation.step, 60));
    const query = filled(withWindows(annotation.expr, from, to, step, await scrapeSeconds(to)), request.scopedVars);
    const found = await rows('query_range', { query, start: String(start), end: String(end), step: String(step) });
    return found.map((row) => series(annotation, row, step));
  }

  async metricFindQuery(wanted: Find, options?: any): Promise<MetricFindValue[]> {
    const text = filled(typeof wanted === 'string' ? wanted : wanted.query, options?.scopedVars);
    const [from, to] = [options.range.from.valueOf() / 1000, options.range.to.valueOf() / 1000];
    const values = /^label_values\((?:([\s\S]+),)?\s*(\w+)\s*\)$/.exec(text);
    if (values) {
      const found = await labelValues(values[2], values[1]?.trim(), from, to);
      return found.map((value) => ({ text: value, value }));
    }
    const result = /^query_result\(([\s\S]+)\)$/.exec(text);
    if (!result) {
      throw new Error(`this viewer knows label_values(…) and query_result(…), not ${text}`);
    }
    const found = await rows('query', { query: withWindows(result[1], from, to, 15, await scrapeSeconds(to)), time: String(to) });
    return found.map(({ metric, value }) => {
      const { __name__: name = '', ...labels } = metric;
      const inside = Object.entries(labels).map(([label, content]) => `${label}="${content}"`).join(',');
      return { text: `${name}{${inside}} ${value![1]} ${value![0] * 1000}` };
    });
  }

  testDatasource() {
    return Promise.resolve({ status: 'success', message: 'see the top of the page' });
  }
}
