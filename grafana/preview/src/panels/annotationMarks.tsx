// Annotations on a time axis: a line at the time, a shade over a span, and a mark below that tells what it was.
import { DataFrame, DataFrameView, dateTimeFormat, TimeZone } from '@grafana/data';
import { Tooltip, UPlotConfigBuilder, useTheme2 } from '@grafana/ui';
import { useEffect, useLayoutEffect, useRef, useState } from 'react';
import { createPortal } from 'react-dom';
import type uPlot from 'uplot';

interface Mark {
  time: number;
  timeEnd?: number;
  isRegion?: boolean;
  title?: string;
  text?: string;
  color?: string;
}

interface AnnotationMarksProps {
  config: UPlotConfigBuilder;
  frames: DataFrame[];
  timeZone: TimeZone;
}

const MOST = 200; // more of them hide what they mark

const SHADE = 0.08;

/** Return the spans that some mark covers: where many overlap, the plot must stay readable. */
function united(marks: Mark[]): Array<[from: number, to: number]> {
  const spans: Array<[number, number]> = [];
  const regions = marks.filter(({ isRegion }) => isRegion).sort((a, b) => a.time - b.time);
  for (const { time, timeEnd } of regions) {
    const last = spans.at(-1);
    if (last && time <= last[1]) {
      last[1] = Math.max(last[1], timeEnd!);
    } else {
      spans.push([time, timeEnd!]);
    }
  }
  return spans;
}

function read(frames: DataFrame[]): Mark[] {
  return frames.flatMap((frame) => new DataFrameView<Mark>(frame).map((mark) => ({ ...mark }))).slice(0, MOST);
}

export function AnnotationMarks({ config, frames, timeZone }: AnnotationMarksProps) {
  const theme = useTheme2();
  const marks = useRef<Mark[]>([]);
  const [plot, setPlot] = useState<uPlot>();
  const [, redraw] = useState(0);
  marks.current = read(frames);
  const tint = (mark: Mark) => theme.visualization.getColorByName(mark.color ?? 'blue');

  useLayoutEffect(() => {
    config.addHook('ready', (u) => setPlot(u));
    config.addHook('draw', (u) => {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      const at = (time: number) => Math.round(u.valToPos(time, 'x', true));
      for (const color of new Set(marks.current.map(tint))) {
        const same = marks.current.filter((mark) => tint(mark) === color);
        ctx.strokeStyle = ctx.fillStyle = color;
        ctx.setLineDash([4, 4]);
        for (const left of new Set(same.map(({ time }) => at(time)))) {
          ctx.beginPath();
          ctx.moveTo(left, bbox.top);
          ctx.lineTo(left, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.globalAlpha = SHADE;
        for (const [from, to] of united(same)) {
          ctx.fillRect(at(from), bbox.top, at(to) - at(from), bbox.height);
        }
        ctx.globalAlpha = 1;
      }
      ctx.restore();
      redraw((n) => n + 1);
    });
  }, [config]);
  useEffect(() => plot?.redraw(false, false), [frames, plot]);

  if (!plot) {
    return null;
  }
  const width = plot.over.clientWidth;
  const place = (at: number) => Math.min(width, Math.max(0, plot.valToPos(at, 'x')));
  return createPortal(
    marks.current.map((mark, i) => {
      const left = place(mark.time);
      const span = mark.isRegion ? Math.max(4, place(mark.timeEnd!) - left) : 0;
      if (!span && (plot.valToPos(mark.time, 'x') < 0 || plot.valToPos(mark.time, 'x') > width)) {
        return null;
      }
      return (
        <Tooltip
          key={i}
          content={
            <>
              <div>{dateTimeFormat(mark.time, { timeZone })}</div>
              <strong>{mark.title}</strong>
              <div>{mark.text}</div>
            </>
          }
        >
          <div
            aria-label={`annotation: ${mark.title}`}
            style={{
              position: 'absolute',
              bottom: -5,
              left: span ? left : left - 4,
              width: span || 8,
              height: 5,
              background: tint(mark),
              clipPath: span ? undefined : 'polygon(50% 0, 100% 100%, 0 100%)',
              zIndex: 1,
            }}
          />
        </Tooltip>
      );
    }),
    plot.over,
  );
}
