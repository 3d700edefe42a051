// A query variable that keeps the value it was given, by the address or by hand, though its query does not list it: what a
// page's link names must be what is shown, not nothing and not the first of a list.
import { QueryVariable, VariableGetOptionsArgs, VariableValueOption } from '@grafana/scenes';
import { map, Observable } from 'rxjs';

export class KeptVariable extends QueryVariable {
  getValueOptions(args: VariableGetOptionsArgs): Observable<VariableValueOption[]> {
    return super.getValueOptions(args).pipe(
      map((options) => {
        const { value } = this.state;
        const given = typeof value === 'string' && value !== '' && !value.startsWith('$__');
        return !given || options.some((option) => option.value === value) ? options : [{ label: value, value }, ...options];
      }),
    );
  }
}
