// State that all views of the page share: the data, the displayed model, and the marked residues.

const data = JSON.parse(document.getElementById('data').textContent);
const byId = (name) => document.getElementById(name);
const length = data.sequence.length;

// A place in the sequence is an index from 0; it is displayed as the letter and the residue's number (and chain).
const chainOf = data.chains.flatMap(([name, residues]) => Array(residues).fill(name));
const severalChains = data.chains.length > 1;
// The first and the last place of a chain.
const placesOfChain = (name) => [chainOf.indexOf(name), chainOf.lastIndexOf(name)];
const residueName = (place) =>
  `${data.sequence[place]}${data.numbers[place]}${severalChains ? ` (${chainOf[place]})` : ''}`;
const bandOf = (plddt) => data.bands.find((band) => plddt >= band.min_plddt) ?? data.bands.at(-1);
const clamp = (value, least, most) => Math.max(least, Math.min(most, value));

// Packed data (zlib in base64), each in its own element.
async function unpack(name) {
  const bytes = Uint8Array.from(atob(byId(name).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
async function unpackText(name) {
  return new TextDecoder().decode(await unpack(name));
}

// Marks are the residues under the pointer: {residues: [first, second?]} or {block: [[from, to], [from, to]]}, places, ends included.
// Pinned marks remain when the pointer leaves.
const marks = {
  now: null,
  pinned: null,
  views: [],
  look(what) {
    marks.now = what;
    marks.views.forEach((view) => view(what));
  },
  leave() {
    marks.look(marks.pinned);
  },
  pin(what) {
    marks.pinned = what && JSON.stringify(what) === JSON.stringify(marks.pinned) ? null : what;
    marks.look(marks.pinned);
  },
};

// The displayed prediction, and the listeners to its changes. Helices and strands are available once its structure has
// been drawn.
const shown = {
  model: data.models[0],
  views: [],
  foldViews: [],
  choose(number) {
    shown.model = data.models[number];
    byId('model').value = String(number);
    shown.views.forEach((view) => view(shown.model));
  },
};

// Colours come from the style sheet, so that they follow light and dark.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
function whenLookChanges(draw) {
  for (const media of ['(prefers-color-scheme: dark)', 'print']) matchMedia(media).addEventListener('change', draw);
}
function whenResized(element, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth !== width) {
      width = element.clientWidth;
      draw();
    }
  }).observe(element);
}

// Tick marks at round numbers.
function ticks(count, most) {
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((size) => count / size <= most) ?? 10000;
  const found = [];
  for (let place = 0; place < count; place += 1) {
    if (data.numbers[place] % step === 0 || (place === 0 && step > 1)) found.push(place);
  }
  // The first one is dropped where it would touch the next.
  return found.length > 2 && found[1] - found[0] < step * 0.5 ? found.slice(1) : found;
}

// Keys that move along a row of residues, for every view in which a residue is selected.
function keysAlong(element) {
  element.addEventListener('keydown', (event) => {
    const far = event.shiftKey ? 10 : 1;
    const step = { ArrowLeft: -far, ArrowRight: far, Home: -length, End: length }[event.key];
    const at = marks.now?.residues?.[0] ?? (step > 0 ? -1 : length);
    if (step !== undefined) marks.look({ residues: [clamp(at + step, 0, length - 1)] });
    else if (event.key === 'Enter' && marks.now) marks.pin(marks.now);
    else if (event.key === 'Escape') marks.pin(null);
    else return;
    event.preventDefault();
  });
  element.addEventListener('blur', () => marks.leave());
}
