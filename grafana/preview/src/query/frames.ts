// Prometheus' rows as Grafana's data frames, in the three formats a panel can ask for.
import { DataFrame, FieldType, toDataFrame } from '@grafana/data';
import { Labels, Row } from './api';

export interface Target {
  refId: string;
  expr: string;
  format?: 'time_series' | 'table';
  instant?: boolean;
  legendFormat?: string;
  interval?: string;
  hide?: boolean;
}

const withoutName = ({ __name__: _, ...labels }: Labels): Labels => labels;

/** Return the name of a series: its legend filled in, else its only label, else what Prometheus would print. */
export function legend(format: string | undefined, labels: Labels): string {
  if (format && format !== '__auto') {
    return format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => labels[label] ?? '');
  }
  const own = Object.entries(withoutName(labels));
  if (format === '__auto' && own.length === 1) {
    return own[0][1];
  }
  const text = own.map(([label, value]) => `${label}="${value}"`).join(', ');
  return `${labels.__name__ ?? ''}${text || !labels.__name__ ? `{${text}}` : ''}`;
}

export function series(target: Target, row: Row, step: number): DataFrame {
  const samples = row.values ?? [row.value!];
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: samples.map(([at]) => at * 1000), config: { interval: step * 1000 } },
      {
        name: row.metric.__name__ ?? 'Value',
        type: FieldType.number,
        labels: withoutName(row.metric),
        values: samples.map(([, value]) => Number(value)),
        config: { displayNameFromDS: legend(target.legendFormat, row.metric) },
      },
    ],
  });
}

/** Return one row per series, a column per label; with several targets the value columns carry the target's letter. */
export function table(target: Target, found: Row[], several: boolean): DataFrame {
  const flat = found.flatMap(({ metric, value, values }) => (values ?? [value!]).map((sample) => ({ metric, sample })));
  const labels = [...new Set(found.flatMap((row) => Object.keys(withoutName(row.metric))))].sort();
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: flat.map(({ sample }) => sample[0] * 1000) },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        config: { filterable: true },
        values: flat.map(({ metric }) => metric[label] ?? ''),
      })),
      {
        name: several ? `Value #${target.refId}` : 'Value',
        type: FieldType.number,
        values: flat.map(({ sample }) => Number(sample[1])),
      },
    ],
  });
}
