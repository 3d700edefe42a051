// The bar at the top: where one is, where else one can go, and that this is no Grafana.
import { Button, Dropdown, Menu, Tooltip, useTheme2 } from '@grafana/ui';
import { config } from '@grafana/runtime';
import { ReactNode } from 'react';
import { Dashboard } from '../classic';
import { beside, changeMode } from './location';
import { Entry } from './server';

interface HeaderProps {
  dashboard?: Dashboard;
  entries: Entry[];
  prometheus: string;
  children?: ReactNode;
}

function Elsewhere({ entries, title, keepTime, includeVars }: { entries: Entry[]; title: string; keepTime?: boolean; includeVars?: boolean }) {
  const menu = () => (
    <Menu>
      {entries.map(({ uid, title, description }) => (
        <Menu.Item key={uid} label={title} ariaLabel={title} description={description} url={beside(uid, keepTime, includeVars)} />
      ))}
    </Menu>
  );
  return (
    <Dropdown overlay={menu} placement="bottom-start">
      <Button variant="secondary" fill="outline" size="sm" icon="apps" aria-label="Dashboards">
        {title}
      </Button>
    </Dropdown>
  );
}

export function Header({ dashboard, entries, prometheus, children }: HeaderProps) {
  const theme = useTheme2();
  const other = config.theme2.isDark ? 'light' : 'dark';
  const lists = (dashboard?.links ?? []).filter(({ type }) => type === 'dashboards');
  const tagged = (tags: string[] = []) => entries.filter((entry) => tags.every((tag) => entry.tags.includes(tag)));
  return (
    <header
      style={{
        display: 'flex',
        flexWrap: 'wrap',
        alignItems: 'center',
        gap: 12,
        padding: '8px 16px',
        background: theme.colors.background.primary,
        borderBottom: `1px solid ${theme.colors.border.weak}`,
      }}
    >
      <h1 style={{ fontSize: 18, margin: 0 }}>{dashboard?.title ?? 'Dashboards'}</h1>
      {lists.length ? (
        lists.map(({ title, tags, keepTime, includeVars }) => (
          <Elsewhere key={title} title={title} entries={tagged(tags)} keepTime={keepTime} includeVars={includeVars} />
        ))
      ) : (
        <Elsewhere title="Tachograph" entries={entries} keepTime includeVars />
      )}
      {(dashboard?.links ?? []).filter(({ type }) => type === 'link').map(({ title, url, targetBlank }) => (
        <a key={title} href={url} target={targetBlank ? '_blank' : undefined} rel="noreferrer" style={{ color: theme.colors.text.link }}>
          {title}
        </a>
      ))}
      <Tooltip content="Nothing can be edited or saved here. Panels may look a little different in Grafana, which shows the same files.">
        <span style={{ color: theme.colors.text.secondary, fontSize: 12, flexGrow: 1 }}>
          A viewer, not Grafana · reads {prometheus || '…'}
        </span>
      </Tooltip>
      {children}
      <Button variant="secondary" fill="text" size="sm" onClick={() => changeMode(other)} aria-label={`Use ${other} colours`}>
        {other === 'light' ? 'Light' : 'Dark'}
      </Button>
    </header>
  );
}
