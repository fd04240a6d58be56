// Draw the alignment: its rows, the most similar at the bottom, and a curve of the number of rows at each residue.

const alignment = {
  canvas: byId('alignment'),
  bits: null,
  image: null,
  frame: { left: 52, right: 14, top: 8, bottom: 58, height: 240 },
};

// Colours from rows without any identity to the target to identical rows.
const IDENTITY = ['#c7375a', '#f08a4b', '#f4c95d', '#7cc36b', '#2f9eb5', '#3a55b4'];

async function startAlignment() {
  const given = data.alignment;
  if (!given || given.rows === 1) {
    const words = given ? 'Only the sequence was used; there are no other sequences in the alignment.' : 'The files of this target have no information about the alignment.';
    alignment.canvas.replaceWith(Object.assign(document.createElement('p'), { textContent: words }));
    if (!given) byId('alignment-section').remove();
    return;
  }
  if (given.picture) alignment.image = pictureOf(given.picture, await unpack(given.picture.data));
  whenResized(alignment.canvas, drawAlignment);
  whenLookChanges(drawAlignment);
  marks.views.push(drawAlignment);
  const at = (event) => {
    const x = event.clientX - alignment.canvas.getBoundingClientRect().left - alignment.frame.left;
    return clamp(Math.floor((x / (alignment.canvas.clientWidth - alignment.frame.left - alignment.frame.right)) * length), 0, length - 1);
  };
  alignment.canvas.addEventListener('pointermove', (event) => marks.look({ residues: [at(event)] }));
  alignment.canvas.addEventListener('click', (event) => marks.pin({ residues: [at(event)] }));
  alignment.canvas.addEventListener('pointerleave', () => marks.leave());
  drawAlignment();
}

function pictureOf({ rows, columns, identities }, bits) {
  const colours = ramp(IDENTITY, 101);
  const image = new ImageData(columns, rows);
  const wide = Math.ceil(columns / 8);
  for (let row = 0; row < rows; row += 1) {
    const rgb = colours[Math.round(identities[row] * 100)];
    for (let column = 0; column < columns; column += 1) {
      if (!(bits[row * wide + (column >> 3)] & (128 >> (column & 7)))) continue;
      const cell = ((rows - 1 - row) * columns + column) * 4;
      image.data.set(rgb, cell);
      image.data[cell + 3] = 255;
    }
  }
  const canvas = document.createElement('canvas');
  canvas.width = columns;
  canvas.height = rows;
  canvas.getContext('2d').putImageData(image, 0, 0);
  return canvas;
}

function drawAlignment() {
  const { canvas, image, frame } = alignment;
  const { rows, depth } = data.alignment;
  const width = canvas.clientWidth;
  if (!width) return;
  const pen = sharp(canvas, width, frame.height + frame.top + frame.bottom);
  const wide = width - frame.left - frame.right;
  const most = Math.max(rows ?? 0, ...depth, 1);
  const x = (place) => frame.left + (place / length) * wide;
  const y = (count) => frame.top + (1 - count / most) * frame.height;
  pen.imageSmoothingEnabled = false;
  if (image) pen.drawImage(image, frame.left, y(rows), wide, y(0) - y(rows));
  pen.strokeRect(frame.left - 0.5, frame.top - 0.5, wide + 1, frame.height + 1);
  pen.textBaseline = 'middle';
  pen.textAlign = 'right';
  for (const count of roundNumbers(most)) pen.fillText(count.toLocaleString('en'), frame.left - 6, y(count));
  pen.textBaseline = 'top';
  pen.textAlign = 'center';
  for (const place of ticks(length, wide / 60)) pen.fillText(data.numbers[place], x(place + 0.5), y(0) + 6);
  pen.beginPath();
  depth.forEach((count, place) => {
    pen.lineTo(x(place), y(count));
    pen.lineTo(x(place + 1), y(count));
  });
  pen.strokeStyle = colour('ink');
  pen.lineWidth = 1.8;
  pen.stroke();
  if (image) drawIdentityScale(pen, y(0) + 34, wide);
  const [place] = marks.now?.residues ?? [];
  if (place !== undefined) {
    pen.fillStyle = colour('first');
    pen.fillRect(x(place + 0.5) - 1, frame.top, 2, frame.height);
  }
  byId('alignment-readout').textContent =
    place === undefined
      ? `The curve is the number of sequences with a residue at each position${image && image.height < rows ? `; the picture shows ${image.height} of ${rows.toLocaleString('en')} rows` : ''}.`
      : `${residueName(place)}: ${Math.round(depth[place]).toLocaleString('en')} sequences`;
}

function drawIdentityScale(pen, top, wide) {
  const { left } = alignment.frame;
  const size = Math.min(160, wide * 0.4);
  const words = 'identity to the target  0 ';
  pen.fillStyle = colour('faint');
  pen.textAlign = 'left';
  pen.fillText(words, left, top);
  const from = left + pen.measureText(words).width + 4;
  ramp(IDENTITY, Math.round(size)).forEach((rgb, number) => {
    pen.fillStyle = `rgb(${rgb.join(' ')})`;
    pen.fillRect(from + number, top + 1, 1.5, 10);
  });
  pen.fillStyle = colour('faint');
  pen.fillText('1', from + size + 8, top);
}

function roundNumbers(most) {
  const rough = most / 4;
  const scale = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * scale).find((size) => size >= rough));
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, number) => number * step);
}
