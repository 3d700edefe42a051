// Rows of coloured cells over a time axis: a state timeline. Drawn on Grafana's own plot.
import { AbsoluteTimeRange, DataFrame, LinkModel, PanelProps } from '@grafana/data';
import {
  AxisPlacement,
  Portal,
  ScaleDirection,
  ScaleOrientation,
  UPlotChart,
  UPlotConfigBuilder,
  useTheme2,
  VizTooltipContainer,
} from '@grafana/ui';
import { ReactNode, useMemo, useRef, useState } from 'react';
import type uPlot from 'uplot';
import { AnnotationMarks } from './annotationMarks';
import { Links } from './seriesTooltip';

export interface Cell {
  from: number;
  to: number;
  color: string;
  text: string;
}

export interface RowOfCells {
  label: string;
  cells: Cell[];
  links?: (cell: Cell) => LinkModel[];
}

interface RowsPlotProps extends Pick<PanelProps, 'width' | 'height' | 'timeRange' | 'timeZone' | 'onChangeTimeRange'> {
  rows: RowOfCells[];
  axis?: number; // pixels left of the plot, for labels; else as many as they need
  share: number; // of a row's height that is filled
  write: 'always' | 'auto' | 'never';
  annotations: DataFrame[];
  tell: (row: RowOfCells, cell: Cell) => ReactNode;
}

const TICK_HEIGHT = 14; // px that a label needs
const LETTER = 7;
const WIDEST_LABEL = 34;
const BESIDE_LABEL = 14;

function shortened(label: string, axis?: number): string {
  const most = axis ? Math.floor((axis - BESIDE_LABEL) / LETTER) : WIDEST_LABEL;
  return label.length > most ? `${label.slice(0, most - 1)}…` : label;
}

function paint(u: uPlot, { rows, share, write }: RowsPlotProps): void {
  const { ctx, bbox } = u;
  const ratio = window.devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${12 * ratio}px Inter, sans-serif`;
  ctx.textBaseline = 'middle';
  ctx.textAlign = 'left';
  rows.forEach(({ cells }, i) => {
    const [a, b] = [u.valToPos(i, 'y', true), u.valToPos(i + 1, 'y', true)];
    const full = Math.abs(b - a);
    const top = Math.min(a, b) + (full * (1 - share)) / 2;
    for (const { from, to, color, text } of cells) {
      const left = Math.round(u.valToPos(from, 'x', true));
      const wide = Math.max(1, Math.round(u.valToPos(to, 'x', true)) - left);
      ctx.fillStyle = color;
      ctx.fillRect(left, Math.round(top), wide, Math.max(1, Math.round(full * share)));
      const fits = full * share > 13 * ratio && (write === 'always' || ctx.measureText(text).width + 8 * ratio < wide);
      if (write !== 'never' && fits) {
        ctx.fillStyle = '#000000cc';
        ctx.fillText(text, Math.max(left, bbox.left) + 4 * ratio, top + (full * share) / 2);
      }
    }
  });
  ctx.restore();
}

function configured(props: () => RowsPlotProps, theme: ReturnType<typeof useTheme2>, zoom: (range: AbsoluteTimeRange) => void) {
  const builder = new UPlotConfigBuilder(props().timeZone);
  const { rows, axis } = props();
  const widest = Math.max(...rows.map(({ label }) => shortened(label).length));
  builder.addScale({
    scaleKey: 'x',
    isTime: true,
    orientation: ScaleOrientation.Horizontal,
    direction: ScaleDirection.Right,
    range: () => [props().timeRange.from.valueOf(), props().timeRange.to.valueOf()],
  });
  builder.addScale({
    scaleKey: 'y',
    orientation: ScaleOrientation.Vertical,
    direction: ScaleDirection.Down,
    range: () => [0, props().rows.length],
  });
  builder.addAxis({ scaleKey: 'x', isTime: true, placement: AxisPlacement.Bottom, theme, timeZone: props().timeZone });
  builder.addAxis({
    scaleKey: 'y',
    placement: AxisPlacement.Left,
    theme,
    size: axis ?? widest * LETTER + BESIDE_LABEL,
    grid: { show: false },
    ticks: { show: false },
    splits: (u) => {
      const most = Math.max(1, Math.floor(u.bbox.height / window.devicePixelRatio / TICK_HEIGHT));
      const every = Math.ceil(props().rows.length / most);
      return props().rows.flatMap((_, i) => (i % every ? [] : [i + 0.5]));
    },
    values: (_, splits) => splits.map((at) => shortened(props().rows[Math.floor(at)]?.label ?? '', axis)),
  });
  builder.addSeries({ scaleKey: 'y', theme, pathBuilder: () => null, show: true } as any);
  builder.setCursor({
    points: { show: false },
    drag: { x: true, y: false, setScale: false },
    sync: { key: '__global_', scales: ['x', null as any] },
  });
  builder.addHook('drawClear', (u) => paint(u, props()));
  builder.addHook('setSelect', (u) => {
    if (u.select.width > 4) {
      zoom({ from: u.posToVal(u.select.left, 'x'), to: u.posToVal(u.select.left + u.select.width, 'x') });
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    }
  });
  return builder;
}

interface Under {
  row: RowOfCells;
  cell: Cell;
  x: number;
  y: number;
  held: boolean;
}

export function RowsPlot(props: RowsPlotProps) {
  const theme = useTheme2();
  const latest = useRef(props);
  latest.current = props;
  const plot = useRef<uPlot>();
  const [under, setUnder] = useState<Under>();
  const { rows, width, height, timeRange, timeZone, annotations, tell } = props;
  const labels = rows.map(({ label }) => label).join('\n');
  const config = useMemo(
    () => configured(() => latest.current, theme, (range) => latest.current.onChangeTimeRange(range)),
    [labels, theme, timeZone],
  );
  const data = useMemo(
    () => [[timeRange.from.valueOf(), timeRange.to.valueOf()], [null, null]] as uPlot.AlignedData,
    [rows, timeRange],
  );

  const look = (event: React.MouseEvent, held = false) => {
    const u = plot.current;
    const box = u?.over.getBoundingClientRect();
    if (!u || !box || (under?.held && !held)) {
      return;
    }
    const at = u.posToVal(event.clientX - box.left, 'x');
    const row = rows[Math.floor(u.posToVal(event.clientY - box.top, 'y'))];
    const cell = row?.cells.find(({ from, to }) => at >= from && at < to);
    const hold = held && !under?.held && Boolean(row?.links);
    setUnder(cell && { row, cell, x: event.clientX, y: event.clientY, held: hold });
  };

  return (
    <div onMouseMove={look} onMouseLeave={() => !under?.held && setUnder(undefined)} onClick={(event) => look(event, true)}>
      <UPlotChart config={config} data={data} width={width} height={height} plotRef={(u) => (plot.current = u)}>
        <AnnotationMarks config={config} frames={annotations} timeZone={timeZone} />
      </UPlotChart>
      {under && (
        <Portal>
          <VizTooltipContainer position={{ x: under.x, y: under.y }} offset={{ x: 12, y: 12 }} allowPointerEvents={under.held}>
            {tell(under.row, under.cell)}
            {under.held ? (
              <Links links={under.row.links!(under.cell)} />
            ) : (
              Boolean(under.row.links?.(under.cell).length) && <small>Click to follow a link</small>
            )}
          </VizTooltipContainer>
        </Portal>
      )}
    </div>
  );
}
