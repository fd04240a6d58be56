// Draw the map of residue pairs, with values under the pointer, pinned pairs and blocks that are selected by dragging.

const heat = {
  canvas: byId('heat'),
  map: null, // the selected map, with its bytes
  image: null,
  frame: { left: data.numbers.at(-1) < 1000 ? 46 : 58, top: severalChains ? 20 : 6, right: severalChains ? 26 : 14, bottom: 64, side: 0 },
  drag: null,
  loading: 0,
};

// Small errors are dark green, as in AlphaFold DB: matplotlib's Greens_r, which pae.png has too. Distances and probabilities have colours in the fitting direction.
const RAMPS = {
  green: ['#00441b', '#006d2c', '#238b45', '#41ab5d', '#74c476', '#a1d99b', '#c7e9c0', '#e5f5e0', '#f7fcf5'],
  purple: ['#2d0b59', '#6b2a91', '#a9509f', '#dd8095', '#f6b997', '#fdf3dc'],
};

async function startHeatMap() {
  if (!data.models.some((model) => model.maps.length)) {
    byId('map-section').remove();
    document.querySelector('.pair').classList.add('alone');
    return;
  }
  byId('map').addEventListener('change', chooseMap);
  shown.views.push(offerMaps);
  marks.views.push(() => drawHeat());
  whenResized(heat.canvas, drawHeat);
  whenLookChanges(drawHeat);
  listenToHeat();
  await offerMaps(shown.model);
}

function offerMaps(model) {
  const select = byId('map');
  const before = select.selectedOptions[0]?.textContent;
  select.replaceChildren(...model.maps.map(({ title }, number) => new Option(title, number, false, title === before)));
  byId('map-label').hidden = model.maps.length < 2;
  return chooseMap();
}

async function chooseMap() {
  const map = shown.model.maps[Number(byId('map').value)];
  const request = (heat.loading += 1);
  const bytes = map && (await unpack(map.data));
  if (request !== heat.loading) return;
  heat.map = map ? { ...map, bytes } : null;
  byId('map-title').textContent = map ? (map.title === 'PAE' ? 'Predicted aligned error' : map.title) : 'Predicted aligned error';
  heat.image = map ? picture(heat.map) : null;
  drawHeat();
}

const rampOf = (map) => (map.title === 'PAE' ? RAMPS.green : map.unit ? RAMPS.purple : [...RAMPS.purple].reverse());

function picture({ cells, step, largest, bytes, ...map }) {
  const colours = ramp(rampOf(map), 256);
  const image = new ImageData(cells, cells);
  for (let cell = 0; cell < cells * cells; cell += 1) {
    image.data.set(colours[Math.min(255, Math.round((bytes[cell] * step * 255) / largest))], cell * 4);
    image.data[cell * 4 + 3] = 255;
  }
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = cells;
  canvas.getContext('2d').putImageData(image, 0, 0);
  return canvas;
}

function drawHeat() {
  const { canvas, map, image, frame } = heat;
  const width = canvas.clientWidth;
  if (!width) return;
  frame.side = Math.min(width - frame.left - frame.right, 640);
  const height = frame.top + frame.side + frame.bottom;
  const pen = sharp(canvas, width, height);
  if (!map) {
    byId('heat-readout').textContent = `The map of ${shown.model.name} is not in this page; see its file.`;
    return;
  }
  pen.imageSmoothingEnabled = map.cells > frame.side * devicePixelRatio;
  pen.drawImage(image, frame.left, frame.top, frame.side, frame.side);
  drawAxes(pen, height);
  drawScale(pen, height);
  drawChosen(pen);
  readHeat();
}

const edge = (place) => (heat.frame.side * place) / length;

function drawAxes(pen) {
  const { left, top, side } = heat.frame;
  pen.strokeRect(left - 0.5, top - 0.5, side + 1, side + 1);
  for (const place of ticks(length, Math.max(3, side / 60))) {
    const at = edge(place + 0.5);
    pen.textAlign = 'center';
    pen.textBaseline = 'top';
    pen.fillText(data.numbers[place], left + at, top + side + 6);
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    pen.fillText(data.numbers[place], left - 6, top + at);
    pen.fillRect(left + at - 0.5, top + side, 1, 4);
    pen.fillRect(left - 4, top + at - 0.5, 4, 1);
  }
  let at = 0;
  for (const [name, residues] of severalChains ? data.chains : []) {
    const middle = edge(at + residues / 2);
    pen.textAlign = 'center';
    pen.textBaseline = 'bottom';
    pen.fillText(name, left + middle, top - 4);
    pen.textAlign = 'left';
    pen.textBaseline = 'middle';
    pen.fillText(name, left + side + 6, top + middle);
    at += residues;
    if (at === length) break;
    pen.fillRect(left + edge(at) - 0.5, top, 1, side);
    pen.fillRect(left, top + edge(at) - 0.5, side, 1);
  }
  pen.save();
  pen.translate(11, top + side / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = 'center';
  pen.fillText(heat.map.title === 'PAE' ? 'Aligned on residue' : 'Residue', 0, 0);
  pen.restore();
}

function drawScale(pen, height) {
  const { left, side } = heat.frame;
  const { largest, unit } = heat.map;
  const wide = Math.min(side * 0.5, 220);
  const from = left + side - wide;
  ramp(rampOf(heat.map), Math.round(wide)).forEach((rgb, number) => {
    pen.fillStyle = `rgb(${rgb.join(' ')})`;
    pen.fillRect(from + number, height - 32, 1.5, 9);
  });
  pen.fillStyle = colour('faint');
  pen.textBaseline = 'top';
  pen.textAlign = 'left';
  pen.fillText(heat.map.title === 'PAE' ? 'Scored residue' : 'Residue', left, height - 34);
  pen.fillText('0', from, height - 18);
  pen.textAlign = 'right';
  pen.fillText(`${largest} ${unit}`.trim(), from + wide, height - 18);
}

// Draw cross-hairs in the colours of the two residues in the structure, or the outline of a block.
function drawChosen(pen) {
  const { left, top } = heat.frame;
  const now = marks.now;
  if (now?.block) {
    const [[a, b], [c, d]] = now.block;
    pen.lineWidth = 2;
    pen.strokeStyle = colour('first');
    pen.strokeRect(left + edge(c), top + edge(a), edge(d + 1 - c), edge(b + 1 - a));
  } else if (now?.residues) {
    const [first, second] = now.residues;
    const thick = Math.max(1.5, edge(1));
    pen.globalAlpha = 0.75;
    pen.fillStyle = colour('first');
    pen.fillRect(left, top + edge(first + 0.5) - thick / 2, heat.frame.side, thick);
    pen.fillStyle = colour(second === undefined ? 'first' : 'second');
    pen.fillRect(left + edge((second ?? first) + 0.5) - thick / 2, top, thick, heat.frame.side);
    pen.globalAlpha = 1;
  }
  pen.lineWidth = 1;
}

const valueAt = (row, column) => {
  const { bytes, cells, block, step } = heat.map;
  return bytes[Math.floor(row / block) * cells + Math.floor(column / block)] * step;
};

function readHeat() {
  const { unit, title, step, block } = heat.map;
  const digits = step < 0.1 ? 2 : 1;
  const now = marks.now;
  let words = `Point at a pair to see it in the structure; click to pin it; drag over a block to colour it.`;
  if (now?.block) {
    const [[a, b], [c, d]] = now.block;
    let sum = 0;
    for (let row = a; row <= b; row += 1) for (let column = c; column <= d; column += 1) sum += valueAt(row, column);
    const mean = sum / ((b - a + 1) * (d - c + 1));
    words = `${residueName(a)}–${residueName(b)} and ${residueName(c)}–${residueName(d)}: mean ${title} ${mean.toFixed(digits)} ${unit}`;
  } else if (now?.residues?.length === 2) {
    const [row, column] = now.residues;
    const about = block > 1 ? 'about ' : '';
    const value = `${about}${valueAt(row, column).toFixed(digits)} ${unit}`.trim();
    words =
      title === 'PAE'
        ? `PAE ${value} · ${residueName(column)} when aligned on ${residueName(row)}`
        : `${title} ${value} · ${residueName(row)} and ${residueName(column)}`;
  }
  byId('heat-readout').textContent = words + (marks.pinned ? ' · kept, Escape lets go' : '');
}

// Return the pair of indices under the pointer, or null outside the map; a drag may leave the map.
function pairAt(event, anywhere = false) {
  const box = heat.canvas.getBoundingClientRect();
  const { left, top, side } = heat.frame;
  const column = ((event.clientX - box.left - left) / side) * length;
  const row = ((event.clientY - box.top - top) / side) * length;
  const inside = row >= 0 && column >= 0 && row < length && column < length;
  return inside || anywhere ? [row, column].map((place) => clamp(Math.floor(place), 0, length - 1)) : null;
}

function listenToHeat() {
  const { canvas } = heat;
  canvas.addEventListener('pointerdown', (event) => {
    heat.drag = heat.map && pairAt(event);
    if (heat.drag && event.pointerType === 'mouse') canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (!heat.map) return;
    const block = heat.drag && blockTo(pairAt(event, true));
    const pair = pairAt(event);
    if (block) marks.look({ block });
    else if (pair) marks.look({ residues: pair });
    else marks.leave();
  });
  canvas.addEventListener('pointerup', (event) => {
    const block = heat.drag && blockTo(pairAt(event, true));
    const pair = heat.drag && pairAt(event);
    heat.drag = null;
    if (block) marks.pin({ block });
    else if (pair) marks.pin({ residues: pair });
  });
  canvas.addEventListener('pointercancel', () => (heat.drag = null));
  canvas.addEventListener('pointerleave', () => heat.drag || marks.leave());
  canvas.addEventListener('blur', () => marks.leave());
  canvas.addEventListener('keydown', (event) => {
    const far = event.shiftKey ? 10 : 1;
    const move = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] }[event.key];
    if (move && heat.map) {
      const middle = Math.floor(length / 2);
      const [row, column = row] = marks.now?.residues ?? [middle, middle];
      marks.look({ residues: [row + move[0], column + move[1]].map((place) => clamp(place, 0, length - 1)) });
    } else if (event.key === 'Enter' && marks.now) marks.pin(marks.now);
    else if (event.key === 'Escape') marks.pin(null);
    else return;
    event.preventDefault();
  });
}

// A drag selects a block once it is longer than an accidental movement.
function blockTo([row, column]) {
  const [startRow, startColumn] = heat.drag;
  if (edge(Math.abs(row - startRow)) < 5 || edge(Math.abs(column - startColumn)) < 5) return null;
  return [
    [Math.min(startRow, row), Math.max(startRow, row)],
    [Math.min(startColumn, column), Math.max(startColumn, column)],
  ];
}
