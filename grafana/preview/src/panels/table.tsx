import { cacheFieldDisplayNames, PanelPlugin, PanelProps } from '@grafana/data';
import { TableNG } from '@grafana/ui/unstable';
import { BY_THRESHOLDS, filled, own } from './parts';

const COLUMN = {
  width: undefined,
  minWidth: 50,
  align: 'auto',
  cellOptions: { type: 'auto' },
  inspect: false,
  filterable: undefined,
  hidden: undefined,
  hideFrom: undefined,
  footer: undefined,
  wrapHeaderText: undefined,
};

function Table(props: PanelProps<any>) {
  const { data, options, width, height, timeRange, fieldConfig } = props;
  cacheFieldDisplayNames(data.series);
  const frame = data.series[Math.min(options.frameIndex ?? 0, data.series.length - 1)];
  return (
    <TableNG
      data={frame}
      width={width}
      height={height}
      noHeader={options.showHeader === false}
      cellHeight={options.cellHeight}
      initialSortBy={options.sortBy}
      enablePagination={options.footer?.enablePagination}
      structureRev={data.structureRev}
      timeRange={timeRange}
      fieldConfig={fieldConfig}
      getActions={() => []}
      transparent={props.transparent}
      disableSanitizeHtml={false}
    />
  );
}

export const table = new PanelPlugin<any>(filled(Table)).useFieldConfig({ ...BY_THRESHOLDS, useCustomConfig: own(COLUMN) });
