import {
  applyNullInsertThreshold,
  DataFrame,
  Field,
  FieldColorModeId,
  FieldType,
  PanelPlugin,
  PanelProps,
} from '@grafana/data';
import { TimeSeries, TooltipDisplayMode, useTheme2 } from '@grafana/ui';
import { useMemo } from 'react';
import { AnnotationMarks } from './annotationMarks';
import { colour, filled, own } from './parts';
import { SeriesTooltip } from './seriesTooltip';

const LINE = {
  drawStyle: 'line',
  lineInterpolation: 'linear',
  lineWidth: 1,
  fillOpacity: 0,
  gradientMode: 'none',
  barAlignment: 0,
  barWidthFactor: 0.6,
  lineStyle: { fill: 'solid' },
  fillBelowTo: undefined,
  spanNulls: false,
  insertNulls: false,
  showPoints: 'auto',
  pointSize: 5,
  stacking: { mode: 'none', group: 'A' },
  axisPlacement: 'auto',
  axisLabel: '',
  axisWidth: undefined,
  axisSoftMin: undefined,
  axisSoftMax: undefined,
  axisGridShow: undefined,
  axisColorMode: 'text',
  axisBorderShow: false,
  axisCenteredZero: false,
  scaleDistribution: { type: 'linear' },
  hideFrom: { tooltip: false, viz: false, legend: false },
  transform: undefined,
  thresholdsStyle: { mode: 'off' },
};

const drawn = ({ type }: Field) => type === FieldType.time || type === FieldType.number;

/** Return a number field as Grafana draws it: NaN and infinity, which no axis can hold, are gaps. */
function graphable(field: Field, seriesIndex: number): Field {
  const values = field.values.map((value) => (Number.isFinite(value) ? value : null));
  return { ...field, values, config: { custom: {}, ...field.config }, state: { ...field.state, seriesIndex } };
}

/**
 * Return the frames that have a time and a number, their fields numbered for the palette, and gaps where samples are
 * missing. Grafana's plot marks a time field that it has looked at for gaps, and would not look again: it gets a copy.
 */
function prepared(series: DataFrame[]): DataFrame[] {
  let number = 0;
  return series
    .filter(({ fields }) => fields.some(({ type }) => type === FieldType.time) && fields.some(({ type }) => type === FieldType.number))
    .map((frame) => ({
      ...frame,
      fields: frame.fields
        .filter(drawn)
        .map((field) => (field.type === FieldType.time ? { ...field, state: null } : graphable(field, number++))),
    }))
    .map((frame) => applyNullInsertThreshold({ frame }));
}

function Lines({ data, options, timeRange, timeZone, width, height, onChangeTimeRange }: PanelProps<any>) {
  const theme = useTheme2();
  const frames = useMemo(() => prepared(data.series), [data.series]);
  const mode = options.tooltip?.mode ?? TooltipDisplayMode.Single;
  return (
    <TimeSeries
      key={theme.name}
      frames={frames}
      structureRev={data.structureRev}
      timeRange={timeRange}
      timeZone={timeZone}
      width={width}
      height={height}
      legend={{ showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [], ...options.legend }}
      options={options}
    >
      {(config, aligned) => (
        <>
          <SeriesTooltip
            config={config}
            frame={aligned}
            mode={mode}
            sort={options.tooltip?.sort}
            onZoom={({ from, to }) => onChangeTimeRange({ from, to })}
          />
          <AnnotationMarks config={config} frames={data.annotations ?? []} timeZone={timeZone} />
        </>
      )}
    </TimeSeries>
  );
}

export const timeseries = new PanelPlugin<any>(filled(Lines)).useFieldConfig({
  ...colour(FieldColorModeId.PaletteClassic),
  useCustomConfig: own(LINE),
});
