import { PanelPlugin, PanelProps, renderTextPanelMarkdown, textUtil } from '@grafana/data';

function Text({ options, replaceVariables }: PanelProps<any>) {
  const content = replaceVariables(options.content ?? '', {}, 'text');
  // Both clean the result: nothing in a dashboard or in a label can bring a script along.
  const html = options.mode === 'html' ? textUtil.sanitize(content) : renderTextPanelMarkdown(content);
  return <div data-preview="drawn" className="markdown-html" style={{ height: '100%', overflow: 'auto' }} dangerouslySetInnerHTML={{ __html: html }} />;
}

export const text = new PanelPlugin<any>(Text);
