// Draw the map of TM-scores of pairs of samples, grouped by conformation.

const heat = { canvas: byId('heat'), image: null, bytes: null, frame: { left: 18, top: 6, right: 8, bottom: 48, side: 0 }, at: null };
const MAP_SCALE = 250; // a byte of the map is a TM-score times this
// Colours from different to equal structures.
const LIKE = ['#2d0b59', '#6b2a91', '#a9509f', '#dd8095', '#f6b997', '#fdf3dc'];

async function startMap() {
  heat.bytes = await unpack(data.map.data);
  heat.image = mapPicture(data.map.samples.length);
  whenResized(heat.canvas, drawMap);
  whenLookChanges(drawMap);
  picked.views.push(drawMap);
  listenToMap();
  drawMap();
}

function mapPicture(count) {
  const colours = ramp(LIKE, 256);
  const image = new ImageData(count, count);
  heat.bytes.forEach((byte, cell) => {
    image.data.set(colours[Math.round((byte * 255) / MAP_SCALE)], cell * 4);
    image.data[cell * 4 + 3] = 255;
  });
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = count;
  canvas.getContext('2d').putImageData(image, 0, 0);
  return canvas;
}

function drawMap() {
  const { canvas, image, frame } = heat;
  const width = canvas.clientWidth;
  if (!width || !image) return;
  frame.side = Math.min(width - frame.left - frame.right, 640);
  const pen = sharp(canvas, width, frame.top + frame.side + frame.bottom);
  const count = data.map.samples.length;
  const cell = frame.side / count;
  pen.imageSmoothingEnabled = count > frame.side * devicePixelRatio;
  pen.drawImage(image, frame.left, frame.top, frame.side, frame.side);
  pen.strokeRect(frame.left - 0.5, frame.top - 0.5, frame.side + 1, frame.side + 1);
  data.map.samples.forEach((sample, place) => {
    pen.fillStyle = colourOfSample(sample);
    pen.fillRect(frame.left - 10, frame.top + place * cell, 6, cell + 0.5);
    pen.fillRect(frame.left + place * cell, frame.top + frame.side + 4, cell + 0.5, 6);
  });
  pen.globalAlpha = 0.8;
  pen.fillStyle = colour('first');
  for (const place of placesOf(picked.samples)) {
    pen.fillRect(frame.left, frame.top + (place + 0.5) * cell - 1, frame.side, 2);
  }
  pen.globalAlpha = 1;
  drawMapScale(pen);
  readMap();
}

const placesOf = (samples) => samples.map((sample) => data.map.samples.indexOf(sample)).filter((place) => place >= 0);

function drawMapScale(pen) {
  const { left, top, side } = heat.frame;
  const wide = Math.min(side * 0.5, 220);
  const from = left + side - wide;
  const height = top + side + 20;
  ramp(LIKE, Math.round(wide)).forEach((rgb, number) => {
    pen.fillStyle = `rgb(${rgb.join(' ')})`;
    pen.fillRect(from + number, height, 1.5, 9);
  });
  pen.fillStyle = colour('faint');
  pen.textBaseline = 'top';
  pen.textAlign = 'left';
  pen.fillText('TM-score', left, height - 1);
  pen.fillText('0', from, height + 13);
  pen.textAlign = 'right';
  pen.fillText('1', from + wide, height + 13);
}

function readMap() {
  const [one, other] = heat.at ?? [];
  if (one === undefined) {
    byId('heat-readout').textContent = 'Point at a pair to see its TM-score; the bars have the colours of the conformations.';
    return;
  }
  const count = data.map.samples.length;
  const score = heat.bytes[one * count + other] / MAP_SCALE;
  const [first, second] = [one, other].map((place) => nameOf(data.map.samples[place]));
  byId('heat-readout').textContent = `TM-score ${score.toFixed(2)} · ${first} and ${second}`;
}

function lookAtPair(pair) {
  heat.at = pair;
  picked.look(pair ? [...new Set(pair)].map((place) => data.map.samples[place]) : []);
}

function listenToMap() {
  const { canvas } = heat;
  const count = data.map.samples.length;
  canvas.addEventListener('pointermove', (event) => {
    const box = canvas.getBoundingClientRect();
    const { left, top, side } = heat.frame;
    const [row, column] = [event.clientY - box.top - top, event.clientX - box.left - left].map((at) => Math.floor((at / side) * count));
    const inside = [row, column].every((place) => place >= 0 && place < count);
    lookAtPair(inside ? [row, column] : null);
  });
  canvas.addEventListener('pointerleave', () => lookAtPair(null));
  canvas.addEventListener('blur', () => lookAtPair(null));
  canvas.addEventListener('keydown', (event) => {
    const far = event.shiftKey ? 10 : 1;
    const move = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] }[event.key];
    if (move) lookAtPair((heat.at ?? [0, 0]).map((place, axis) => clamp(place + move[axis], 0, count - 1)));
    else if (event.key === 'Escape') lookAtPair(null);
    else return;
    event.preventDefault();
  });
}

Promise.all([startStructure(), startMap(), startScatter()]).then(
  () => (document.documentElement.dataset.ready = 'yes'),
  (error) => {
    console.error(error);
    say(`This page is damaged, or the browser is too old to unpack it (${error.message}). The files in its directory have the same data.`);
  },
);
