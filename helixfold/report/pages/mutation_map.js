// Draw the heat map of single mutants: positions as columns, amino acids as rows, one measure at a time.

const scan = JSON.parse(document.getElementById('data')?.textContent ?? 'null');
const byId = (name) => document.getElementById(name);
const map = { canvas: byId('mutation-map'), measure: scan?.measures[0], cell: 14, left: 26, top: 8, bottom: 76, at: null };
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const channels = (text) => [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16));

// Worse values are red, better ones blue; a measure without a neutral value runs from the worst to the middle.
function shade(value) {
  if (value === null || value === undefined) return colour('none');
  const { range, neutral, isLoss } = map.measure;
  const share = (value - range[0]) / (range[1] - range[0]);
  const good = isLoss ? 1 - share : share;
  const place = neutral === null ? good : good * 2 - 1;
  const [from, to, part] =
    neutral === null ? ['worse', 'middle', place] : place < 0 ? ['middle', 'worse', -place] : ['middle', 'better', place];
  const [low, high] = [channels(colour(from)), channels(colour(to))];
  return `rgb(${low.map((each, channel) => Math.round(each + (high[channel] - each) * part)).join(' ')})`;
}

function drawMap() {
  const { canvas, left, top, bottom, measure } = map;
  const columns = scan.positions.length;
  // Few positions have large cells, many are scrolled.
  map.cell = Math.max(14, Math.min(26, Math.floor((canvas.parentElement.clientWidth - left - 12) / columns)));
  const { cell } = map;
  const width = Math.max(left + columns * cell + 12, 300);
  const height = top + scan.rows.length * cell + bottom;
  const scale = devicePixelRatio || 1;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = '11px system-ui, sans-serif';
  pen.textBaseline = 'middle';
  [...scan.rows].forEach((letter, row) => {
    pen.fillStyle = colour('faint');
    pen.textAlign = 'center';
    pen.fillText(letter, left / 2, top + (row + 0.5) * cell);
    scan.positions.forEach(([, own], column) => {
      pen.fillStyle = shade(measure.cells[row][column]);
      pen.fillRect(left + column * cell, top + row * cell, cell - 1, cell - 1);
      if (own !== letter) return;
      pen.fillStyle = colour('faint');
      pen.beginPath();
      pen.arc(left + (column + 0.5) * cell - 0.5, top + (row + 0.5) * cell - 0.5, 2, 0, 7);
      pen.fill();
    });
  });
  sayFlat();
  drawColumns(pen);
  drawScale(pen, height);
  if (map.at) {
    pen.strokeStyle = colour('first');
    pen.lineWidth = 2;
    pen.strokeRect(left + map.at[1] * cell - 1, top + map.at[0] * cell - 1, cell + 1, cell + 1);
  }
}

function sayFlat() {
  const { title, flatBelow, digits } = map.measure;
  byId('map-flat').hidden = flatBelow === null;
  if (flatBelow !== null)
    byId('map-flat').textContent = `No change: by “${title}”, every mutant is within ${flatBelow.toFixed(digits)} of the wild type. Differences this small are not meaningful.`;
}

// Residue numbers are upright below the columns, as far as there is space.
function drawColumns(pen) {
  const { cell, left, top } = map;
  const bottom = top + scan.rows.length * cell;
  pen.fillStyle = colour('faint');
  scan.positions.forEach(([label, own], column) => {
    pen.save();
    pen.translate(left + (column + 0.5) * cell, bottom + 4);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = 'right';
    pen.fillText(`${label} ${own}`, 0, 0);
    pen.restore();
  });
}

function drawScale(pen, height) {
  const { measure, left } = map;
  const [low, high] = measure.range;
  for (let step = 0; step < 160; step += 1) {
    pen.fillStyle = shade(low + ((high - low) * step) / 159);
    pen.fillRect(left + step, height - 24, 1.5, 8);
  }
  pen.fillStyle = colour('faint');
  pen.textAlign = 'left';
  pen.fillText(low.toFixed(measure.digits), left, height - 7);
  pen.textAlign = 'right';
  pen.fillText(high.toFixed(measure.digits), left + 160, height - 7);
}

function readMap() {
  let words = 'Point at a mutation to see its value; dots are the residues of the target.';
  if (map.at) {
    const [row, column] = map.at;
    const [label, own] = scan.positions[column];
    const value = map.measure.cells[row][column];
    const name = scan.rows[row] === own ? `${own} ${label}, the target’s own` : `${own} ${label} to ${scan.rows[row]}`;
    words = `${name}: ${map.measure.title} ${value === null ? 'not known' : value.toFixed(map.measure.digits)}`;
  }
  byId('map-readout').textContent = words;
}

function pointAt(row, column) {
  const inside = row >= 0 && column >= 0 && row < scan.rows.length && column < scan.positions.length;
  map.at = inside ? [row, column] : null;
  drawMap();
  readMap();
}

if (scan) {
  byId('measure').replaceChildren(...scan.measures.map(({ title }, number) => new Option(title, number)));
  byId('measure').addEventListener('change', ({ target }) => {
    map.measure = scan.measures[Number(target.value)];
    drawMap();
    readMap();
  });
  const under = (event) => {
    const box = map.canvas.getBoundingClientRect();
    pointAt(
      Math.floor((event.clientY - box.top - map.top) / map.cell),
      Math.floor((event.clientX - box.left - map.left) / map.cell),
    );
  };
  map.canvas.addEventListener('pointermove', under);
  map.canvas.addEventListener('pointerdown', under);
  map.canvas.addEventListener('keydown', (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    const [row, column] = map.at ?? [0, 0];
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    pointAt(clamp(row + move[0], scan.rows.length), clamp(column + move[1], scan.positions.length));
    event.preventDefault();
  });
  for (const media of ['(prefers-color-scheme: dark)', 'print']) matchMedia(media).addEventListener('change', drawMap);
  drawMap();
  readMap();
}
