import { FieldDisplay, getDisplayValueAlignmentFactors, PanelPlugin, PanelProps, VizOrientation } from '@grafana/data';
import {
  BigValue,
  BigValueColorMode,
  BigValueGraphMode,
  BigValueJustifyMode,
  BigValueTextMode,
  useTheme2,
  VizRepeater,
  VizRepeaterRenderValueProps,
} from '@grafana/ui';
import { BY_THRESHOLDS, filled } from './parts';
import { Linked, useValues } from './values';

function Stat(props: PanelProps<any>) {
  const theme = useTheme2();
  const { options, width, height, data, renderCounter, timeRange } = props;
  const values = useValues(props, options.graphMode !== 'none');
  const one = ({ value, count, alignmentFactors, width, height }: VizRepeaterRenderValueProps<FieldDisplay>) => {
    const sparkline = value.sparkline && { ...value.sparkline, timeRange };
    return (
      <Linked
        value={value}
        draw={(onClick, className) => (
          <BigValue
            value={value.display}
            count={count}
            sparkline={sparkline}
            colorMode={options.colorMode ?? BigValueColorMode.Value}
            graphMode={options.graphMode ?? BigValueGraphMode.Area}
            justifyMode={options.justifyMode ?? BigValueJustifyMode.Auto}
            textMode={options.textMode ?? BigValueTextMode.Auto}
            percentChangeColorMode={options.percentChangeColorMode}
            disableWideLayout={options.wideLayout === false}
            text={options.text}
            alignmentFactors={alignmentFactors as any}
            theme={theme}
            width={width}
            height={height}
            onClick={onClick}
            className={className}
          />
        )}
      />
    );
  };
  return (
    <VizRepeater
      getValues={values}
      getAlignmentFactors={getDisplayValueAlignmentFactors as any}
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

export const stat = new PanelPlugin<any>(filled(Stat, true)).useFieldConfig(BY_THRESHOLDS);
