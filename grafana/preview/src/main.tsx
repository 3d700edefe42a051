import './page.css';
import { ThemeContext } from '@grafana/data';
import { config, locationService, LocationServiceProvider } from '@grafana/runtime';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import { ReactNode, useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { Router } from 'react-router-dom';
import { App } from './page/App';
import { chosenMode } from './page/location';
import { startRuntime } from './runtime';
import { watchErrors } from './trace';

/** Grafana's location service keeps an older history than this router's own; the router only has to hear of changes. */
function Located({ children }: { children: ReactNode }) {
  const history = locationService.getHistory();
  const [location, setLocation] = useState(history.location);
  useEffect(() => history.listen(setLocation), [history]);
  return (
    <Router location={location} navigator={history as any}>
      {children}
    </Router>
  );
}

watchErrors();
startRuntime(chosenMode()).then(() => {
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={config.theme2}>
      <GlobalStyles />
      <LocationServiceProvider service={locationService}>
        <Located>
          <App />
          <PortalContainer />
        </Located>
      </LocationServiceProvider>
    </ThemeContext.Provider>,
  );
});
