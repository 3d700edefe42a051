// Series of an annotation's query as marks on the time axis: samples side by side are one mark with a beginning and an end.
import { AnnotationEvent, DataFrame } from '@grafana/data';
import { legend } from './frames';

export interface Annotation {
  name: string;
  expr: string;
  step?: string;
  titleFormat?: string;
  textFormat?: string;
  tagKeys?: string;
  iconColor?: string;
}

export function marks(annotation: Annotation, frames: DataFrame[]): AnnotationEvent[] {
  return frames.flatMap(({ fields: [time, value] }) => {
    const labels = value.labels ?? {};
    const spans: Array<[number, number]> = [];
    time.values.forEach((at: number, i: number) => {
      const last = spans.at(-1);
      if (!value.values[i]) {
        return;
      }
      if (last && at - last[1] <= time.config.interval!) {
        last[1] = at;
      } else {
        spans.push([at, at]);
      }
    });
    return spans.map(([from, to]) => ({
      time: from,
      timeEnd: to,
      isRegion: to > from,
      title: legend(annotation.titleFormat || annotation.name, labels),
      text: annotation.textFormat ? legend(annotation.textFormat, labels).trim() : '',
      tags: (annotation.tagKeys ?? '').split(',').map((key) => labels[key.trim()]).filter(Boolean),
      color: annotation.iconColor,
      source: annotation,
    }));
  });
}
