// Samples as spans of time: each lasts until the next, unless the next one is missing.
import { DataFrame, Field, FieldType } from '@grafana/data';

export interface Sampled {
  field: Field;
  times: number[];
  values: Array<number | string | null>;
  step: number;
  frame: DataFrame;
}

/** Return every field that is no time, with its times and the step between them. */
export function sampled(series: DataFrame[]): Sampled[] {
  return series.flatMap((frame) => {
    const time = frame.fields.find(({ type }) => type === FieldType.time);
    if (!time) {
      return [];
    }
    const times: number[] = time.values;
    const gaps = times.slice(1).map((at, i) => at - times[i]);
    const step = time.config.interval ?? (gaps.length ? Math.min(...gaps) : 60_000);
    return frame.fields
      .filter((field) => field !== time && !field.config.custom?.hideFrom?.viz)
      .map((field) => ({ field, times, values: field.values, step, frame }));
  });
}

/** Return until when the sample at `i` holds. */
export function until({ times, step }: Sampled, i: number): number {
  const next = times[i + 1];
  return next !== undefined && next - times[i] <= 1.5 * step ? next : times[i] + step;
}
