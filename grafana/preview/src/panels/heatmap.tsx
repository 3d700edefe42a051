// Grafana does not publish its heatmap: one row per series (or bucket), the first at the bottom, coloured by a scheme.
import { dateTimeFormat, FieldColorModeId, formattedValueToString, getFieldDisplayName, PanelPlugin, PanelProps } from '@grafana/data';
import { useTheme2 } from '@grafana/ui';
import * as schemes from 'd3-scale-chromatic';
import { useMemo } from 'react';
import { colour, filled, own } from './parts';
import { RowOfCells, RowsPlot } from './rowsPlot';
import { sampled, until } from './spans';

interface Colours {
  scheme?: string;
  reverse?: boolean;
  steps?: number;
  min?: number;
  max?: number;
  mode?: 'scheme' | 'opacity';
  fill?: string;
  exponent?: number;
}

const LEGEND_HEIGHT = 22;
const DIVERGING = /BrBG|PiYG|PRGn|PuOr|RdBu|RdGy|RdYlBu|RdYlGn|Spectral/;
const FIXED = /Turbo|Viridis|Inferno|Magma|Plasma|Cividis|Warm|Cool|Cubehelix|Rainbow|Sinebow/;

/** Return the colour of a share from 0 to 1, in as many steps as asked for. */
function painter(options: Colours, theme: ReturnType<typeof useTheme2>): (share: number) => string {
  const steps = Math.max(2, options.steps ?? 64);
  const stepped = (share: number) => Math.round(Math.min(1, Math.max(0, share)) * (steps - 1)) / (steps - 1);
  if (options.mode === 'opacity') {
    const fill = theme.visualization.getColorByName(options.fill ?? 'dark-orange');
    const hex = (share: number) => Math.round(255 * stepped(share) ** (options.exponent ?? 0.5)).toString(16).padStart(2, '0');
    return (share) => `${fill}${hex(share)}`;
  }
  const wanted = `interpolate${options.scheme ?? 'Oranges'}` as 'interpolateOranges';
  const scheme = schemes[wanted] ?? schemes.interpolateOranges;
  // As Grafana: diverging schemes are turned round, sequential ones in the dark, so that little is close to the background.
  const turn = DIVERGING.test(wanted) || (theme.isDark && !FIXED.test(wanted));
  return (share) => scheme(Boolean(options.reverse) !== turn ? 1 - stepped(share) : stepped(share));
}

function Heat(props: PanelProps<any>) {
  const { data, options, timeZone, width, height, fieldConfig } = props;
  const theme = useTheme2();
  const colours: Colours = options.color ?? {};
  const fields = useMemo(() => sampled(data.series), [data.series]);
  const least = options.filterValues?.le ?? 1e-9;
  const shown = fields.map((one) => one.values.map((value) => (Number.isFinite(value) && Number(value) > least ? Number(value) : null)));
  const numbers = shown.flat().filter((value): value is number => value !== null);
  const min = colours.min ?? fieldConfig.defaults.min ?? Math.min(...numbers, Infinity);
  const max = colours.max ?? fieldConfig.defaults.max ?? Math.max(...numbers, -Infinity);
  const paint = painter(colours, theme);
  const written = (value: number) => formattedValueToString(fields[0].field.display!(value));
  const rows: RowOfCells[] = fields.map((one, row) => ({
    label: getFieldDisplayName(one.field, one.frame, data.series),
    cells: shown[row].flatMap((value, i) =>
      value === null
        ? []
        : [{ from: one.times[i], to: until(one, i), color: paint(max > min ? (value - min) / (max - min) : 1), text: written(value) }],
    ),
    links: one.field.config.links?.length
      ? (cell) => one.field.getLinks?.({ valueRowIndex: one.times.indexOf(cell.from) }) ?? []
      : undefined,
  }));
  const legend = options.legend?.show !== false && numbers.length > 0;
  const ramp = Array.from({ length: 11 }, (_, i) => paint(i / 10)).join(', ');
  return (
    <>
      <RowsPlot
        {...props}
        height={height - (legend ? LEGEND_HEIGHT : 0)}
        rows={rows}
        upwards
        share={1}
        write={options.showValue ?? 'never'}
        annotations={data.annotations ?? []}
        tell={({ label }, { text, from }) => (
          <>
            <strong>{label}</strong>: {text}
            <div>{dateTimeFormat(from, { timeZone })}</div>
          </>
        )}
      />
      {legend && (
        <div style={{ display: 'flex', gap: 8, alignItems: 'center', height: LEGEND_HEIGHT, fontSize: 12, width }}>
          {written(min)}
          <div style={{ width: Math.min(260, width / 2), height: 8, background: `linear-gradient(to right, ${ramp})` }} />
          {written(max)}
        </div>
      )}
    </>
  );
}

export const heatmap = new PanelPlugin<any>(filled(Heat)).useFieldConfig({
  ...colour(FieldColorModeId.ContinuousBlPu),
  useCustomConfig: own({ hideFrom: undefined, scaleDistribution: { type: 'linear' } }),
});
