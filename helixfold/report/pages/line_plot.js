// Draw pLDDT along the chain: a curve for each model over the confidence bands.

const plot = { element: byId('plddt'), hidden: new Set(), height: 240, left: 34, right: 14, top: 8, bottom: 34 };

const xOf = (place) => plot.left + ((place + 0.5) / length) * (plot.width - plot.left - plot.right);
const yOf = (plddt) => plot.top + (1 - plddt / 100) * (plot.height - plot.top - plot.bottom);

function startPlot() {
  byId('plddt-legend').append(...data.models.map(legendOf));
  whenResized(plot.element, drawPlot);
  shown.views.push(drawPlot);
  marks.views.push(markPlot);
  const { element } = plot;
  const at = (event) => {
    const x = event.clientX - element.getBoundingClientRect().left - plot.left;
    return clamp(Math.floor((x / (plot.width - plot.left - plot.right)) * length), 0, length - 1);
  };
  element.addEventListener('pointermove', (event) => marks.look({ residues: [at(event)] }));
  element.addEventListener('click', (event) => marks.pin({ residues: [at(event)] }));
  element.addEventListener('pointerleave', () => marks.leave());
  keysAlong(element);
  drawPlot();
}

function legendOf(model, number) {
  const button = document.createElement('button');
  button.type = 'button';
  button.setAttribute('aria-pressed', 'true');
  const sample = svg('svg', { viewBox: '0 0 20 8', 'aria-hidden': 'true' });
  sample.append(svg('line', { x1: 0, x2: 20, y1: 4, y2: 4, 'stroke-width': 3, class: `c${number % 5}` }));
  button.append(sample, model.name);
  button.addEventListener('click', () => {
    const hide = !plot.hidden.delete(number);
    if (hide) plot.hidden.add(number);
    button.setAttribute('aria-pressed', String(!hide));
    drawPlot();
  });
  return button;
}

function drawPlot() {
  plot.width = plot.element.clientWidth || 600;
  const { width, height, left, right } = plot;
  const image = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, 'aria-hidden': 'true' });
  let top = 100;
  for (const band of data.bands) {
    image.append(
      svg('rect', { x: left, width: width - left - right, y: yOf(top), height: yOf(band.min_plddt) - yOf(top), class: `band fill ${band.letter}` }),
    );
    top = band.min_plddt;
  }
  for (const value of [0, 50, 70, 90, 100]) {
    image.append(
      svg('line', { x1: left, x2: width - right, y1: yOf(value), y2: yOf(value), class: 'grid' }),
      svg('text', { x: left - 6, y: yOf(value) + 4, 'text-anchor': 'end' }, String(value)),
    );
  }
  for (const place of ticks(length, width / 60)) {
    const x = xOf(place);
    image.append(
      svg('line', { x1: x, x2: x, y1: yOf(0), y2: yOf(0) + 4, class: 'grid' }),
      svg('text', { x, y: yOf(0) + 18, 'text-anchor': 'middle' }, String(data.numbers[place])),
    );
  }
  let end = 0;
  for (const [, residues] of data.chains.slice(0, -1)) {
    end += residues;
    image.append(svg('line', { x1: xOf(end - 0.5), x2: xOf(end - 0.5), y1: yOf(0), y2: yOf(100), class: 'grid' }));
  }
  // The displayed model comes last, on top.
  const order = data.models.map((_, number) => number).sort((a, b) => (data.models[a] === shown.model) - (data.models[b] === shown.model));
  for (const number of order.filter((number) => !plot.hidden.has(number))) image.append(lineOf(number));
  plot.cursor = svg('g');
  image.append(plot.cursor);
  plot.element.replaceChildren(image);
  markPlot(marks.now);
}

function lineOf(number) {
  const model = data.models[number];
  const look = `line c${number % 5} ${model === shown.model ? 'best' : ''}`;
  if (length === 1) return svg('circle', { cx: xOf(0), cy: yOf(model.plddt[0]), r: 3, class: look });
  const points = model.plddt.map((value, place) => `${xOf(place).toFixed(1)},${yOf(value).toFixed(1)}`).join(' ');
  return svg('polyline', { points, class: look });
}

function markPlot(what) {
  const places = what?.residues ?? [];
  plot.cursor.replaceChildren(
    ...places.map((place, number) =>
      svg('line', { x1: xOf(place), x2: xOf(place), y1: yOf(0), y2: yOf(100), class: 'cursor', stroke: colour(number ? 'second' : 'first') }),
    ),
    ...(what?.block ?? []).map(([from, to], number) =>
      svg('rect', { x: xOf(from - 0.5), width: xOf(to + 0.5) - xOf(from - 0.5), y: yOf(100), height: yOf(0) - yOf(100), opacity: 0.3, fill: colour(number ? 'second' : 'first') }),
    ),
  );
  const several = data.models.length > 1;
  const values = (place) => data.models.map(({ name, plddt }) => `${several ? `${name} ` : ''}${plddt[place].toFixed(1)}`);
  const shownValues = (place) => (several && data.models.length > 5 ? [shown.model.plddt[place].toFixed(1)] : values(place));
  byId('plddt-readout').textContent = places.length
    ? [...new Set(places)].map((place) => `${residueName(place)}: ${shownValues(place).join(', ')}`).join(' · ')
    : 'Point at a residue to see its values and its position in the structure.';
}
