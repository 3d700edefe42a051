// Grafana does not publish its state timeline: rows of our own, over the same values, colours, mappings and names.
import { dateTimeFormat, FieldType, formattedValueToString, getFieldDisplayName, PanelPlugin, PanelProps } from '@grafana/data';
import { useMemo } from 'react';
import { BY_THRESHOLDS, filled, own } from './parts';
import { Cell, RowOfCells, RowsPlot } from './rowsPlot';
import { Sampled, sampled, until } from './spans';

function row(one: Sampled, all: PanelProps['data']['series'], merge: boolean): RowOfCells {
  const { field, frame, times, values } = one;
  const cells: Cell[] = [];
  const index = new Map<Cell, number>();
  values.forEach((value, i) => {
    if (value === null || value === undefined || Number.isNaN(value)) {
      return;
    }
    const shown = field.display!(value);
    const text = formattedValueToString(shown);
    const last = cells.at(-1);
    if (merge && last && last.text === text && last.to >= times[i]) {
      last.to = until(one, i);
      return;
    }
    const cell = { from: times[i], to: until(one, i), color: shown.color ?? '#888888', text };
    cells.push(cell);
    index.set(cell, i);
  });
  const links = field.config.links?.length
    ? (cell: Cell) => field.getLinks?.({ valueRowIndex: index.get(cell) }) ?? []
    : undefined;
  return { label: getFieldDisplayName(field, frame, all), cells, links };
}

const LEGEND_HEIGHT = 22; // px

function Legend({ words }: { words: Map<string, string> }) {
  return (
    <div style={{ display: 'flex', gap: 14, height: LEGEND_HEIGHT, alignItems: 'end', overflow: 'hidden', fontSize: 12 }}>
      {[...words].map(([text, color]) => (
        <span key={text} style={{ whiteSpace: 'nowrap' }}>
          <span style={{ display: 'inline-block', width: 14, height: 4, marginRight: 6, verticalAlign: 'middle', background: color }} />
          {text}
        </span>
      ))}
    </div>
  );
}

function Timeline(props: PanelProps<any>) {
  const { data, options, timeZone } = props;
  const rows = useMemo(
    () => sampled(data.series).map((one) => row(one, data.series, options.mergeValues !== false)),
    [data.series, options.mergeValues],
  );
  const words = useMemo(
    () => new Map(rows.flatMap(({ cells }) => cells.map(({ text, color }) => [text, color] as const))),
    [rows],
  );
  const legend = options.legend?.showLegend ? LEGEND_HEIGHT : 0;
  const numbers = data.series[0]?.fields.find(({ type }) => type !== FieldType.time);
  return (
    <>
      <RowsPlot
        {...props}
        height={props.height - legend}
        rows={rows}
        axis={numbers?.config.custom?.axisWidth}
        share={options.rowHeight ?? 0.9}
        write={options.showValue ?? 'auto'}
        annotations={data.annotations ?? []}
        tell={({ label }, { text, from, to }) => (
          <>
            <strong>{label}</strong>: {text}
            <div>
              {dateTimeFormat(from, { timeZone })} – {dateTimeFormat(to, { timeZone, format: 'HH:mm:ss' })}
            </div>
      
    </>
      )}
    />
    {legend > 0 && <Legend words={words} />}
    </>
  );
}

export const stateTimeline = new PanelPlugin<any>(filled(Timeline)).useFieldConfig({
  ...BY_THRESHOLDS,
  useCustomConfig: own({ lineWidth: 1, fillOpacity: 70, hideFrom: undefined, axisWidth: undefined }),
});
