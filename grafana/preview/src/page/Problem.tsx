// What stands in place of a dashboard, or above it, when something is wrong: in words, and with the way on.
import { useTheme2 } from '@grafana/ui';
import { ReactNode } from 'react';
import { beside, instead } from './location';
import { Check, Entry } from './server';

export function Notice({ children, severe = true }: { children: ReactNode; severe?: boolean }) {
  const theme = useTheme2();
  const tone = severe ? theme.colors.error : theme.colors.warning;
  return (
    <div
      role="alert"
      style={{
        margin: 16,
        padding: 16,
        maxWidth: 900,
        lineHeight: 1.6,
        background: theme.colors.background.primary,
        borderLeft: `4px solid ${tone.main}`,
      }}
    >
      {children}
    </div>
  );
}

function Link({ href, children }: { href: string; children: ReactNode }) {
  const theme = useTheme2();
  return (
    <a href={href} style={{ color: theme.colors.text.link, marginRight: 16 }}>
      {children}
    </a>
  );
}

export function NoSuchDashboard({ uid, entries }: { uid: string; entries: Entry[] }) {
  return (
    <Notice>
      There is no dashboard “{uid}”. There {entries.length === 1 ? 'is' : 'are'}:
      <ul style={{ margin: '8px 0 0 20px' }}>
        {entries.map((entry) => (
          <li key={entry.uid}>
            <Link href={beside(entry.uid)}>{entry.title}</Link>
            {entry.description}
          </li>
        ))}
      </ul>
    </Notice>
  );
}

const WIDER = { 'the last 6 hours': 'now-6h', 'the last 24 hours': 'now-24h', 'the last 7 days': 'now-7d' };

export function Wrong({ problem }: { problem: NonNullable<Check['problem']> }) {
  return (
    <Notice severe={problem.about !== 'rules' && problem.about !== 'empty'}>
      {problem.text}
      {problem.about === 'run' && (
        <div>
          {problem.nearest.map((run) => (
            <Link key={run} href={instead({ 'var-run': run })}>
              {run}
            </Link>
          ))}
        </div>
      )}
      {problem.about === 'range' && (
        <div>
          Look at{' '}
          {Object.entries(WIDER).map(([words, from]) => (
            <Link key={from} href={instead({ from, to: 'now' })}>
              {words}
            </Link>
          ))}
        </div>
      )}
    </Notice>
  );
}
