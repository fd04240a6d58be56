// Draw a point for each sample, and the fluctuation of each residue.

const { names, alignments, conformation, axes } = data.samples;
const OTHERS = '#98a4ae'; // further conformations, which have no colour of their own
const colourOfConformation = (number) => PARTS[number] ?? OTHERS;
const colourOfSample = (sample) => colourOfConformation(conformation[sample]);
const nameOf = (sample) => `${names[sample]} (conformation ${conformation[sample] + 1})`;

document.querySelectorAll('[data-conformation]').forEach((dot) => {
  dot.style.background = colourOfConformation(Number(dot.dataset.conformation));
});
byId('model').addEventListener('change', (event) => shown.choose(Number(event.target.value)));
document.querySelectorAll('[data-model]').forEach((button) =>
  button.addEventListener('click', () => {
    shown.choose(Number(button.dataset.model));
    byId('structure-section').scrollIntoView({ behavior: 'smooth', block: 'nearest' });
  }),
);

// The samples under the pointer, and the listeners to changes.
const picked = {
  samples: [],
  views: [],
  look(samples) {
    picked.samples = samples;
    picked.views.forEach((view) => view());
  },
};

const scatter = { canvas: byId('scatter'), frame: { left: 52, top: 10, right: 16, bottom: 44 }, height: 380 };

function startScatter() {
  const select = (name, chosen) => {
    byId(name).append(...axes.map(({ title }, number) => new Option(title, number, false, number === chosen)));
    byId(name).addEventListener('change', drawScatter);
  };
  // The first reference is the fourth axis from the left, if there is one: axes come in pairs, TM-score and RMSD.
  select('across', axes.length > 3 ? 2 : 0);
  select('up', axes.length - 1);
  const groups = [...new Set(conformation)].sort((one, other) => one - other);
  byId('legend').append(...groups.slice(0, PARTS.length).map((number) => legendOf(`${number + 1}`, colourOfConformation(number))));
  if (groups.length > PARTS.length) byId('legend').append(legendOf('others', OTHERS));
  whenResized(scatter.canvas, drawScatter);
  whenLookChanges(drawScatter);
  picked.views.push(drawScatter);
  const { canvas } = scatter;
  canvas.addEventListener('pointermove', (event) => picked.look(sampleAt(event)));
  canvas.addEventListener('pointerleave', () => picked.look([]));
  canvas.addEventListener('click', (event) => {
    const [sample] = sampleAt(event);
    if (sample !== undefined && conformation[sample] < data.models.length) shown.choose(conformation[sample]);
  });
  drawScatter();
  startFluctuations();
}

function legendOf(text, shade) {
  const made = document.createElement('span');
  const dot = document.createElement('i');
  dot.className = 'dot';
  dot.style.background = shade;
  made.append(dot, text);
  return made;
}

// Return the position of a value on an axis, with margins at both ends.
function scaleOf(axis, from, to) {
  const [least, most] = [Math.min(...axis.values), Math.max(...axis.values)];
  const room = (most - least || 1) * 0.06;
  const [start, end] = [least - room, most + room];
  return { place: (value) => from + ((value - start) / (end - start)) * (to - from), ticks: roundNumbers(start, end, Math.abs(to - from) / 70) };
}

function roundNumbers(start, end, most) {
  const rough = (end - start) / Math.max(2, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const found = [];
  for (let number = Math.ceil(start / step); number * step <= end; number += 1) found.push([number * step, (number * step).toFixed(digits)]);
  return found;
}

function drawScatter() {
  const { canvas, frame, height } = scatter;
  const width = canvas.clientWidth;
  if (!width) return;
  const [x, y] = ['across', 'up'].map((name) => axes[Number(byId(name).value)]);
  const across = scaleOf(x, frame.left, width - frame.right);
  const up = scaleOf(y, height - frame.bottom, frame.top);
  const pen = sharp(canvas, width, height);
  scatter.points = names.map((_, sample) => [across.place(x.values[sample]), up.place(y.values[sample])]);
  drawGrid(pen, across, up, [x, y], width);
  pen.globalAlpha = names.length > 300 ? 0.55 : 0.8;
  // The best sample is drawn last, on top.
  for (let sample = names.length - 1; sample >= 0; sample -= 1) dotAt(pen, scatter.points[sample], 4.5, colourOfSample(sample));
  pen.globalAlpha = 1;
  pen.lineWidth = 2;
  pen.strokeStyle = colour('ink');
  ringAt(pen, scatter.points[0], 7);
  pen.strokeStyle = colour('first');
  picked.samples.forEach((sample) => ringAt(pen, scatter.points[sample], 7));
  readScatter([x, y]);
}

function drawGrid(pen, across, up, [x, y], width) {
  const { frame, height } = scatter;
  const bottom = height - frame.bottom;
  pen.textAlign = 'center';
  pen.textBaseline = 'top';
  for (const [value, text] of across.ticks) {
    pen.strokeRect(Math.round(across.place(value)) + 0.5, frame.top, 0, bottom - frame.top);
    pen.fillText(text, across.place(value), bottom + 6);
  }
  pen.textAlign = 'right';
  pen.textBaseline = 'middle';
  for (const [value, text] of up.ticks) {
    pen.strokeRect(frame.left, Math.round(up.place(value)) + 0.5, width - frame.left - frame.right, 0);
    pen.fillText(text, frame.left - 6, up.place(value));
  }
  const titled = ({ title, unit }) => (unit ? `${title}, ${unit}` : title);
  pen.textAlign = 'center';
  pen.textBaseline = 'bottom';
  pen.fillText(titled(x), (frame.left + width - frame.right) / 2, height - 4);
  pen.save();
  pen.translate(13, (frame.top + bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(titled(y), 0, 4);
  pen.restore();
}

function dotAt(pen, [x, y], radius, shade) {
  pen.fillStyle = shade;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}

function ringAt(pen, [x, y], radius) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.stroke();
}

// Return the sample nearest to the pointer, if it is close enough.
function sampleAt(event) {
  const box = scatter.canvas.getBoundingClientRect();
  const apart = scatter.points.map(([x, y]) => Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top));
  const best = apart.reduce((found, distance, sample) => (distance < apart[found] ? sample : found), 0);
  return apart[best] < 20 ? [best] : [];
}

function readScatter(both) {
  const [sample] = picked.samples;
  byId('scatter-readout').textContent =
    sample === undefined
      ? 'Point at a sample to see its values; click to see its conformation. Colours are conformations; the ring is the best sample.'
      : `Rank ${sample + 1}: ${nameOf(sample)}, alignment ${alignments[sample]} · ${both.map(({ title, unit, values }) => `${title} ${values[sample]} ${unit}`.trim()).join(' · ')}`;
}

const rmsf = { element: byId('rmsf'), height: 200, left: 40, right: 14, top: 8, bottom: 30 };

function startFluctuations() {
  const { element } = rmsf;
  whenResized(element, drawFluctuations);
  marks.views.push(markFluctuations);
  const at = (event) => {
    const x = event.clientX - element.getBoundingClientRect().left - rmsf.left;
    return clamp(Math.floor((x / (rmsf.width - rmsf.left - rmsf.right)) * length), 0, length - 1);
  };
  element.addEventListener('pointermove', (event) => marks.look({ residues: [at(event)] }));
  element.addEventListener('click', (event) => marks.pin({ residues: [at(event)] }));
  element.addEventListener('pointerleave', () => marks.leave());
  keysAlong(element);
  drawFluctuations();
}

const rmsfX = (place) => rmsf.left + ((place + 0.5) / length) * (rmsf.width - rmsf.left - rmsf.right);
const rmsfY = (value) => rmsf.top + (1 - value / rmsf.most) * (rmsf.height - rmsf.top - rmsf.bottom);

function drawFluctuations() {
  const { element, height, left, right } = rmsf;
  rmsf.width = element.clientWidth || 600;
  rmsf.most = Math.max(...data.rmsf, 0.1) * 1.08;
  const image = svg('svg', { viewBox: `0 0 ${rmsf.width} ${height}`, height, 'aria-hidden': 'true' });
  for (const [value, text] of roundNumbers(0, rmsf.most, 4)) {
    image.append(
      svg('line', { x1: left, x2: rmsf.width - right, y1: rmsfY(value), y2: rmsfY(value), class: 'grid' }),
      svg('text', { x: left - 6, y: rmsfY(value) + 4, 'text-anchor': 'end' }, text),
    );
  }
  for (const place of ticks(length, rmsf.width / 60)) {
    image.append(svg('text', { x: rmsfX(place), y: height - 10, 'text-anchor': 'middle' }, String(data.numbers[place])));
  }
  let end = 0;
  for (const [, residues] of data.chains.slice(0, -1)) {
    end += residues;
    image.append(svg('line', { x1: rmsfX(end - 0.5), x2: rmsfX(end - 0.5), y1: rmsfY(0), y2: rmsf.top, class: 'grid' }));
  }
  // Unknown residues have no atoms, so the curve skips them.
  const known = [...data.rmsf.keys()].filter((place) => data.rmsf[place] !== null);
  const points = known.map((place) => `${rmsfX(place).toFixed(1)},${rmsfY(data.rmsf[place]).toFixed(1)}`).join(' ');
  image.append(
    svg('polygon', { points: `${rmsfX(known[0])},${rmsfY(0)} ${points} ${rmsfX(known.at(-1))},${rmsfY(0)}`, class: 'under' }),
    svg('polyline', { points, class: 'rmsf' }),
  );
  rmsf.cursor = svg('g');
  image.append(rmsf.cursor);
  element.replaceChildren(image);
  markFluctuations(marks.now);
}

function markFluctuations(what) {
  const places = [...new Set(what?.residues ?? [])];
  rmsf.cursor.replaceChildren(
    ...places.map((place, number) =>
      svg('line', { x1: rmsfX(place), x2: rmsfX(place), y1: rmsfY(0), y2: rmsf.top, class: 'cursor', stroke: colour(number ? 'second' : 'first') }),
    ),
  );
  byId('rmsf-readout').textContent = places.length
    ? places.map((place) => `${residueName(place)}: ${data.rmsf[place] === null ? 'no atoms' : `${data.rmsf[place].toFixed(2)} Å`}`).join(' · ')
    : 'Point along the chain to read values and see the residue in the structure.';
}
