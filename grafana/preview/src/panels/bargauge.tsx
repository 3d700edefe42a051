import { FieldDisplay, getDisplayValueAlignmentFactors, PanelPlugin, PanelProps } from '@grafana/data';
import { BarGauge, useTheme2, VizRepeater, VizRepeaterRenderValueProps } from '@grafana/ui';
import { BY_THRESHOLDS, filled } from './parts';
import { Linked, useValues } from './values';

const SPACING = 8;

function Bars(props: PanelProps<any>) {
  const theme = useTheme2();
  const { options, width, height, data, renderCounter } = props;
  const one = (place: VizRepeaterRenderValueProps<FieldDisplay>) => {
    const { value, alignmentFactors, orientation, width, height } = place;
    const { field, display, view, colIndex } = value;
    return (
      <Linked
        value={value}
        draw={(onClick, className) => (
          <BarGauge
            value={display}
            width={width}
            height={height}
            orientation={orientation}
            field={field}
            text={options.text}
            display={view?.getFieldDisplayProcessor(colIndex!)}
            theme={theme}
            itemSpacing={SPACING}
            displayMode={options.displayMode ?? 'gradient'}
            showUnfilled={options.showUnfilled !== false}
            valueDisplayMode={options.valueMode}
            namePlacement={options.namePlacement ?? 'auto'}
            alignmentFactors={alignmentFactors as any}
            onClick={onClick}
            className={className}
          />
        )}
      />
    );
  };
  return (
    <VizRepeater
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      getValues={useValues(props)}
      renderValue={one as any}
      width={width}
      height={height}
      minVizWidth={options.minVizWidth ?? 8}
      minVizHeight={options.minVizHeight ?? 16}
      source={data}
      itemSpacing={SPACING}
      renderCounter={renderCounter}
      orientation={options.orientation ?? 'horizontal'}
    />
  );
}

export const bargauge = new PanelPlugin<any>(filled(Bars, true)).useFieldConfig(BY_THRESHOLDS);
