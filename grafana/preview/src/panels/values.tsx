// The values that a stat shows: one per series, or all of them.
import { FieldDisplay, getFieldDisplayValues, PanelProps } from '@grafana/data';
import { DataLinksContextMenu, useTheme2 } from '@grafana/ui';
import { MouseEventHandler, ReactElement } from 'react';

/** Return the function that reads a panel's values, for Grafana's VizRepeater. */
export function useValues(props: PanelProps<any>, sparkline = false): () => FieldDisplay[] {
  const theme = useTheme2();
  return () =>
    getFieldDisplayValues({
      fieldConfig: props.fieldConfig,
      reduceOptions: { calcs: ['lastNotNull'], values: false, fields: '', ...props.options.reduceOptions },
      replaceVariables: props.replaceVariables,
      theme,
      data: props.data.series,
      sparkline,
      timeZone: props.timeZone,
    });
}

type Draw = (click?: MouseEventHandler<HTMLElement>, name?: string) => ReactElement;

/** Draw a value; where it has data links, a click follows the only one or offers several. */
export function Linked({ value, draw }: { value: FieldDisplay; draw: Draw }): ReactElement {
  if (!value.hasLinks || !value.getLinks) {
    return draw();
  }
  return (
    <DataLinksContextMenu links={value.getLinks as any}>
      {({ openMenu, targetClassName }) => draw(openMenu, targetClassName)}
    </DataLinksContextMenu>
  );
}
