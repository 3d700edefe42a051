// What a time series says under the pointer; a click holds it, so that its links can be followed. Dragging zooms.
import { DashboardCursorSync, DataFrame, dateTimeFormat, FieldType, formattedValueToString, getFieldDisplayName, LinkModel } from '@grafana/data';
import { SeriesTable, TooltipDisplayMode, TooltipPlugin2, UPlotConfigBuilder, useTheme2 } from '@grafana/ui';

const HOVER = { one: 0, all: 1, single: 2 }; // TooltipHoverMode, an enum that is not published
const MOST = 20;

interface SeriesTooltipProps {
  config: UPlotConfigBuilder;
  frame: DataFrame;
  mode: TooltipDisplayMode;
  sort?: string;
  onZoom: (range: { from: number; to: number }) => void;
}

function entries(frame: DataFrame, at: Array<number | null>, pointed: number | null, mode: TooltipDisplayMode, sort?: string) {
  const found = frame.fields.flatMap((field, i) => {
    const index = at[i];
    const hidden = field.type !== FieldType.number || field.config.custom?.hideFrom?.tooltip || field.config.custom?.hideFrom?.viz;
    if (hidden || index == null || (mode === TooltipDisplayMode.Single && i !== pointed)) {
      return [];
    }
    const value = field.values[index];
    if (value == null) {
      return [];
    }
    const shown = field.display!(value);
    return [{ value: Number(value), row: {
      color: shown.color,
      label: getFieldDisplayName(field, frame),
      value: formattedValueToString(shown),
      isActive: i === pointed,
    } }];
  });
  if (sort === 'desc' || sort === 'asc') {
    found.sort((a, b) => (sort === 'desc' ? b.value - a.value : a.value - b.value));
  }
  return found.slice(0, MOST).map(({ row }) => row);
}

export function Links({ links }: { links: LinkModel[] }) {
  const theme = useTheme2();
  return (
    <div style={{ marginTop: 4 }}>
      {links.map((link) => (
        <div key={link.href + link.title}>
          <a href={link.href} target={link.target} rel="noreferrer" style={{ color: theme.colors.text.link }}>
            {link.title}
          </a>
        </div>
      ))}
    </div>
  );
}

export function SeriesTooltip({ config, frame, mode, sort, onZoom }: SeriesTooltipProps) {
  if (mode === TooltipDisplayMode.None) {
    return null;
  }
  return (
    <TooltipPlugin2
      config={config}
      hoverMode={mode === TooltipDisplayMode.Single ? HOVER.one : HOVER.all}
      queryZoom={onZoom}
      clientZoom
      syncMode={DashboardCursorSync.Crosshair}
      getDataLinks={(series, row) => frame.fields[series]?.getLinks?.({ valueRowIndex: row }) ?? []}
      render={(_u, at, pointed, isPinned, _dismiss, _range, viaSync, links) => {
        const row = at.find((index) => index != null);
        if (viaSync || row == null) {
          return null;
        }
        return (
          <div style={{ padding: 8, pointerEvents: isPinned ? 'auto' : undefined }}>
            <SeriesTable timestamp={dateTimeFormat(frame.fields[0].values[row])} series={entries(frame, at, pointed, mode, sort)} />
            {isPinned ? <Links links={links} /> : links.length > 0 && <small>Click to follow a link</small>}
          </div>
        );
      }}
    />
  );
}
