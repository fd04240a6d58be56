// The structure in three dimensions, by 3Dmol.js.

const structure = {
  element: byId('viewer'),
  viewer: null,
  carbons: new Map(), // place to C-alpha atom
  betas: new Map(), // place to C-beta atom, C-alpha of glycine
  block: null,
  loading: 0,
  template: null,
};

const PARTS = ['#4e79a7', '#f28e2b', '#59a14f', '#b07aa1', '#76b7b2', '#e15759', '#9c755f', '#edc948'];
const CONTACT = 8; // Å
const MAX_LINES = 500; // more lines cannot be distinguished
const GREY = '#a9b3bc';
const FILE = data.file ?? 'ranked_0.cif'; // what to open where the page cannot draw

function say(message) {
  byId('viewer-message').textContent = message;
  byId('viewer-message').hidden = message === '';
}

async function startStructure() {
  if (!Object.keys(data.models[0].structures).length) {
    byId('structure-section').querySelectorAll('.tools').forEach((tools) => (tools.hidden = true));
    say(`This page has no structure; open ${FILE} in a viewer of your choice.`);
    return;
  }
  const canvas = document.createElement('canvas');
  if (!canvas.getContext('webgl2') && !canvas.getContext('webgl')) {
    say(`The structure cannot be drawn: this browser has no WebGL. Open ${FILE} in another viewer.`);
    return;
  }
  try {
    const script = document.createElement('script');
    script.textContent = await unpackText(data.viewer);
    document.head.append(script);
    structure.viewer = window.$3Dmol.createViewer(structure.element, {
      backgroundColor: colour('viewer'),
      antialias: true,
      cartoonQuality: length > 1500 ? 4 : 8,
    });
  } catch (error) {
    say(`The structure cannot be drawn (${error.message}). Open ${FILE} in another viewer.`);
    return;
  }
  structure.element.viewer = structure.viewer;
  structure.viewer.setHoverDuration(40);
  byId('colour').querySelector('[value=domain]').disabled = !data.models.some((model) => model.domains.length);
  byId('colour').querySelector('[value=chain]').disabled = !severalChains;
  listen();
  await load();
  marks.views.push(drawMarks);
  shown.views.push(load);
  whenLookChanges(() => {
    structure.viewer.setBackgroundColor(colour('viewer'));
    paint();
  });
  new ResizeObserver(() => structure.viewer.resize()).observe(structure.element);
  printStructure();
}

// WebGL drawings are not printed, so they are copied to a canvas that is only visible in print.
function printStructure() {
  const copy = document.createElement('canvas');
  copy.className = 'printed';
  structure.element.append(copy);
  addEventListener('beforeprint', () => {
    const drawn = structure.viewer.getCanvas();
    copy.width = drawn.width;
    copy.height = drawn.height;
    structure.viewer.render();
    copy.getContext('2d').drawImage(drawn, 0, 0);
  });
}

// The selected structure, relaxed if possible.
function chosen() {
  const found = shown.model.structures;
  return found[byId('kind').value] ?? found.relaxed ?? found.unrelaxed ?? null;
}

async function load() {
  const kinds = shown.model.structures;
  byId('kind-label').hidden = !(kinds.relaxed && kinds.unrelaxed);
  const wanted = chosen();
  const request = (structure.loading += 1);
  const text = wanted && (await unpackText(wanted.data));
  if (request !== structure.loading) return; // another structure was selected meanwhile
  const { viewer } = structure;
  const view = structure.carbons.size ? viewer.getView() : null;
  viewer.removeAllModels();
  structure.template = null;
  structure.carbons.clear();
  structure.betas.clear();
  say(wanted ? '' : `The structure of ${shown.model.name} is not in this page, because the page would be too large; open its file.`);
  byId('save').disabled = !wanted;
  if (wanted) {
    place(viewer.addModel(text, wanted.form), wanted);
    if (!view && !isChain()) byId('style').value = 'sticks';
    shown.foldViews.forEach((view) => view((at) => structure.carbons.get(at)?.ss));
    viewer.setHoverable({}, true, (atom) => marks.look(marksOf(atom)), () => marks.leave());
    viewer.setClickable({}, true, (atom) => marks.pin(marksOf(atom)));
  }
  paint();
  if (view) viewer.setView(view);
  else closeUp();
  drawMarks(marks.now);
  await showTemplate();
}

// Show the selected template in grey over the prediction.
async function showTemplate() {
  const wanted = data.templates[byId('template')?.value];
  const request = structure.loading;
  const text = wanted && (await unpackText(wanted.structure.data));
  if (request !== structure.loading) return;
  const { viewer } = structure;
  if (structure.template) viewer.removeModel(structure.template);
  structure.template = wanted ? viewer.addModel(text, wanted.structure.form) : null;
  if (wanted) structure.template.selectedAtoms({}).forEach((atom) => move(atom, wanted.structure));
  paint();
}

// As large as it can be with a margin; 3Dmol's own zoom leaves room for every turn.
function closeUp() {
  const { viewer, element } = structure;
  viewer.zoomTo();
  const atoms = viewer.selectedAtoms({}).map(({ x, y, z }) => ({ x, y, z }));
  if (!atoms.length) return;
  viewer.render();
  const places = viewer.modelToScreen(atoms);
  const [middle] = viewer.modelToScreen([centreOf(atoms)]);
  const furthest = (axis) => places.reduce((most, at) => Math.max(most, Math.abs(at[axis] - middle[axis])), 0);
  const across = furthest('x') / (element.clientWidth / 2);
  const down = furthest('y') / (element.clientHeight / 2);
  viewer.zoom(clamp(0.88 / Math.max(across, down, 0.01), 0.5, 3));
}

// 3Dmol looks at the mean of the atoms.
function centreOf(atoms) {
  const sum = atoms.reduce((total, { x, y, z }) => ({ x: total.x + x, y: total.y + y, z: total.z + z }));
  return { x: sum.x / atoms.length, y: sum.y / atoms.length, z: sum.z / atoms.length };
}

const marksOf = (atom) => (atom.place === undefined ? null : { residues: [atom.place] });

function move(atom, { rotation, shift }) {
  const { x, y, z } = atom;
  [atom.x, atom.y, atom.z] = [0, 3, 6].map((row, axis) => rotation[row] * x + rotation[row + 1] * y + rotation[row + 2] * z + shift[axis]);
}

// Apply the page's rotation and shift to the atoms, and set each atom's place in the sequence.
function place(model, wanted) {
  const places = new Map(data.numbers.map((number, at) => [`${chainOf[at]}|${number}`, at]));
  for (const atom of model.selectedAtoms({})) {
    move(atom, wanted);
    atom.place = places.get(`${atom.chain}|${atom.resi}`);
    if (atom.atom === 'CA') structure.carbons.set(atom.place, atom);
    if (atom.atom === (atom.resn === 'GLY' ? 'CA' : 'CB')) structure.betas.set(atom.place, atom);
  }
}

// A cartoon needs several residues with neighbours at normal distances; other atoms would not be drawn.
function isChain() {
  const { carbons } = structure;
  const near = (one, other) => one && other && Math.hypot(one.x - other.x, one.y - other.y, one.z - other.z) < 4.5;
  const linked = [...carbons.keys()].filter((at) => near(carbons.get(at), carbons.get(at + 1))).length;
  return linked >= Math.max(3, carbons.size / 2);
}

function colourOf() {
  const { block } = structure;
  if (block) {
    const [first, second] = block;
    const within = (range, at) => at >= range[0] && at <= range[1];
    return (atom) => (within(second, atom.place) ? colour('second') : within(first, atom.place) ? colour('first') : GREY);
  }
  const by = byId('colour').value;
  if (by === 'rainbow') return (atom) => `hsl(${Math.round(240 * (1 - atom.place / Math.max(1, length - 1)))}, 85%, 50%)`;
  if (by === 'chain') {
    const names = data.chains.map(([name]) => name);
    return (atom) => PARTS[names.indexOf(atom.chain) % PARTS.length] ?? GREY;
  }
  if (by === 'domain') {
    const number = (place) => shown.model.domains.findIndex(({ ranges, chains }) => ranges.some((range, at) => inRange(range, chains[at], place)));
    return (atom) => (number(atom.place) < 0 ? GREY : PARTS[number(atom.place) % PARTS.length]);
  }
  return (atom) => bandOf(atom.b).color;
}

// Domains refer to residues by their numbers, and in a complex also by their chains.
const inRange = ([first, last], chain, at) =>
  data.numbers[at] >= first && data.numbers[at] <= last && (chain === undefined || chain === chainOf[at]);

function paint() {
  const { viewer } = structure;
  const memory = new Map();
  const find = colourOf();
  const by = (atom) => {
    const key = byId('colour').value === 'plddt' && !structure.block ? atom.b : atom.place;
    if (!memory.has(key)) memory.set(key, window.$3Dmol.CC.color(hex(find(atom))));
    return memory.get(key);
  };
  const style = byId('style').value;
  const sticks = { stick: { colorfunc: by, radius: 0.18 } };
  const cartoon = { cartoon: { colorfunc: by, thickness: 0.35, arrows: true } };
  viewer.setStyle({}, { sticks, cartoon, sidechains: cartoon, spheres: { sphere: { colorfunc: by, scale: 0.9 } } }[style]);
  if (style === 'sidechains') viewer.addStyle({ not: { atom: ['N', 'C', 'O'] } }, sticks);
  structure.template?.setStyle({}, { cartoon: { color: GREY, opacity: 0.75, thickness: 0.3, arrows: true } });
  viewer.render();
}

// 3Dmol reads hexadecimal colours; a canvas reads all and gives them back so.
const reader = document.createElement('canvas').getContext('2d');
function hex(text) {
  reader.fillStyle = text;
  return reader.fillStyle;
}

function drawMarks(what) {
  const { viewer, carbons } = structure;
  if (JSON.stringify(what?.block ?? null) !== JSON.stringify(structure.block)) {
    structure.block = what?.block ?? null;
    paint();
  }
  viewer.removeAllShapes();
  viewer.removeAllLabels();
  const atoms = (what?.residues ?? []).map((at) => carbons.get(at)).filter(Boolean);
  atoms.forEach((atom, number) => {
    const shade = hex(colour(number ? 'second' : 'first'));
    viewer.addSphere({ center: { x: atom.x, y: atom.y, z: atom.z }, radius: 1.5, color: shade });
    viewer.addLabel(residueName(atom.place), {
      position: { x: atom.x, y: atom.y, z: atom.z },
      backgroundColor: shade,
      backgroundOpacity: 0.9,
      fontColor: colour('card'),
      fontSize: 13,
      screenOffset: { x: 12, y: -12 },
      inFront: true,
    });
  });
  if (atoms.length === 2 && atoms[0] !== atoms[1]) {
    const [start, end] = atoms.map(({ x, y, z }) => ({ x, y, z }));
    viewer.addCylinder({ start, end, radius: 0.25, color: hex(colour('faint')), dashed: true });
  }
  const contacts = contactsBetweenChains(what?.block);
  contacts.slice(0, MAX_LINES).forEach(([start, end]) =>
    viewer.addCylinder({ start, end, radius: 0.12, color: hex(colour('ink')), dashed: true }),
  );
  structure.element.dataset.contacts = String(contacts.length);
  structure.element.dataset.marked = atoms.map((atom) => `${atom.chain}${atom.resi}`).join(' ');
  byId('atom-readout').textContent = readAtoms(atoms) || readContacts(contacts);
  viewer.render();
}

// Pairs of C-beta atoms within 8 Å, of residues of different chains in the selected block.
function contactsBetweenChains(block) {
  if (!block || !severalChains) return [];
  const [first, second] = block.map(([from, to]) => [...structure.betas.values()].filter(({ place }) => place >= from && place <= to));
  const touch = (one, other) => chainOf[one.place] !== chainOf[other.place] && Math.hypot(one.x - other.x, one.y - other.y, one.z - other.z) <= CONTACT;
  const at = ({ x, y, z }) => ({ x, y, z });
  return first.flatMap((one) => second.filter((other) => touch(one, other)).map((other) => [at(one), at(other)]));
}

function readContacts(contacts) {
  return structure.block && severalChains ? `Contacts between chains, C-beta atoms within ${CONTACT} Å: ${contacts.length}` : '';
}

function readAtoms(atoms) {
  if (!atoms.length) return structure.block ? '' : 'Drag to rotate; click and scroll to zoom; point at a residue to find it in the plots.';
  const words = atoms.map((atom) => `${residueName(atom.place)}, pLDDT ${atom.b.toFixed(1)}`);
  if (atoms.length < 2) return words[0];
  const apart = Math.hypot(atoms[0].x - atoms[1].x, atoms[0].y - atoms[1].y, atoms[0].z - atoms[1].z);
  return `${words.join(' · ')} · C-alpha atoms ${apart.toFixed(1)} Å apart`;
}

function listen() {
  const { element, viewer } = structure;
  for (const name of ['colour', 'style']) byId(name).addEventListener('change', paint);
  byId('kind').addEventListener('change', load);
  byId('template')?.addEventListener('change', showTemplate);
  byId('reset').addEventListener('click', () => {
    viewer.setView([0, 0, 0, 0, 0, 0, 0, 1]);
    closeUp();
  });
  byId('spin').addEventListener('click', ({ currentTarget }) => {
    const spins = currentTarget.getAttribute('aria-pressed') !== 'true';
    currentTarget.setAttribute('aria-pressed', String(spins));
    viewer.spin(spins ? 'y' : false);
  });
  byId('picture').addEventListener('click', () => keep(viewer.pngURI(), `${data.name}_${shown.model.name}.png`));
  byId('save').addEventListener('click', async () => {
    const { data: packedText, file, form } = chosen();
    const link = URL.createObjectURL(new Blob([await unpack(packedText)], { type: `chemical/x-${form}` }));
    keep(link, `${data.name}_${file}`);
    setTimeout(() => URL.revokeObjectURL(link), 10000);
  });
  // The wheel scrolls the page until the viewer is clicked into.
  element.addEventListener('pointerdown', () => element.focus({ preventScroll: true }));
  element.addEventListener('wheel', (event) => document.activeElement === element || event.stopPropagation(), true);
  element.addEventListener('pointerleave', () => marks.leave());
  element.addEventListener('keydown', (event) => {
    const turns = { ArrowLeft: [-10, 'y'], ArrowRight: [10, 'y'], ArrowUp: [-10, 'x'], ArrowDown: [10, 'x'] };
    if (turns[event.key]) viewer.rotate(...turns[event.key]);
    else if (event.key === '+' || event.key === '=') viewer.zoom(1.15);
    else if (event.key === '-') viewer.zoom(1 / 1.15);
    else if (event.key === 'r') byId('reset').click();
    else if (event.key === 'Escape') marks.pin(null);
    else return;
    viewer.render();
    event.preventDefault();
  });
}

function keep(address, name) {
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
}
