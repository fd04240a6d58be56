// Sort the table by any column, and filter the targets by words.

const table = document.getElementById('targets');
const rows = [...table.tBodies[0].rows];
const headers = [...table.tHead.querySelectorAll('.sort')];

// Cells with a value to sort by, in the order of the buttons; an unfinished target has only one.
const valuesOf = (row) => [...row.querySelectorAll('td[data-value]')].map((cell) => cell.dataset.value);

function compare(column, number, sign) {
  return (one, other) => {
    const [a, b] = [valuesOf(one)[column] ?? '', valuesOf(other)[column] ?? ''];
    // Rows without a value come last in either direction.
    if (a === '' || b === '') return (a === '') - (b === '');
    return sign * (number ? a - b : a.localeCompare(b, 'en', { numeric: true }));
  };
}

headers.forEach((button, column) =>
  button.addEventListener('click', () => {
    const header = button.closest('th');
    const number = button.dataset.kind === 'n';
    // Numbers are first sorted with the largest on top, and names from A.
    const order = { none: number ? 'descending' : 'ascending', ascending: 'descending', descending: 'ascending' };
    const next = order[header.getAttribute('aria-sort')];
    headers.forEach((other) => other.closest('th').setAttribute('aria-sort', 'none'));
    header.setAttribute('aria-sort', next);
    table.tBodies[0].append(...[...rows].sort(compare(column, number, next === 'ascending' ? 1 : -1)));
  }),
);

document.getElementById('filter').addEventListener('input', ({ target }) => {
  const words = target.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById('count').textContent = words.length ? `${shown} of ${rows.length} targets` : '';
});
document.documentElement.dataset.ready = 'yes';
