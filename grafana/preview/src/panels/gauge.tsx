// Grafana does not publish its gauge: an arc of our own, over the same values, colours and names.
import { FieldDisplay, formattedValueToString, PanelPlugin, PanelProps, VizOrientation } from '@grafana/data';
import { useTheme2, VizRepeater, VizRepeaterRenderValueProps } from '@grafana/ui';
import { MouseEventHandler } from 'react';
import { BY_THRESHOLDS, filled } from './parts';
import { Linked, useValues } from './values';

const THICKNESS = 14;

interface ArcProps {
  value: FieldDisplay;
  width: number;
  height: number;
  onClick?: MouseEventHandler<any>;
}

function Arc({ value: { field, display }, width, height, onClick }: ArcProps) {
  const theme = useTheme2();
  const [min, max] = [field.min ?? 0, field.max ?? 100];
  const share = Number.isFinite(display.numeric) ? Math.min(1, Math.max(0, (display.numeric - min) / (max - min))) : 0;
  const radius = Math.max(8, Math.min(width / 2 - THICKNESS, height - 2 * THICKNESS - 18));
  const [middle, base] = [width / 2, radius + THICKNESS + (height - radius - 2 * THICKNESS - 18) / 2];
  const at = (part: number) => {
    const angle = Math.PI * (1 + part);
    return `${middle + radius * Math.cos(angle)} ${base + radius * Math.sin(angle)}`;
  };
  const arc = (to: number, color: string) => (
    <path d={`M ${at(0)} A ${radius} ${radius} 0 0 1 ${at(to)}`} stroke={color} strokeWidth={THICKNESS} fill="none" />
  );
  const text = formattedValueToString(display);
  return (
    <svg width={width} height={height} role="img" aria-label={`${display.title ?? ''} ${text}`} onClick={onClick}>
      {arc(1, theme.colors.background.secondary)}
      {share > 0 && arc(share, display.color ?? theme.colors.primary.main)}
      <text x={middle} y={base} textAnchor="middle" fontSize={Math.min(32, radius / 2)} fill={display.color}>
        {text}
      </text>
      <text x={middle} y={base + 18} textAnchor="middle" fontSize={12} fill={theme.colors.text.secondary}>
        {display.title}
      </text>
    </svg>
  );
}

function Gauge(props: PanelProps<any>) {
  const { options, width, height, data, renderCounter } = props;
  const one = ({ value, width, height }: VizRepeaterRenderValueProps<FieldDisplay>) => (
    <Linked value={value} draw={(onClick) => <Arc value={value} width={width} height={height} onClick={onClick} />} />
  );
  return (
    <VizRepeater
      getValues={useValues(props)}
      renderValue={one as any}
      width={width}
      height={height}
      source={data}
      itemSpacing={3}
      renderCounter={renderCounter}
      autoGrid
      orientation={options.orientation ?? VizOrientation.Auto}
    />
  );
}

export const gauge = new PanelPlugin<any>(filled(Gauge, true)).useFieldConfig(BY_THRESHOLDS);
