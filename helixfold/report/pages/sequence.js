// Show the sequence, one letter per residue, in the colours of pLDDT.

function startSequence() {
  const strip = byId('sequence');
  const letters = [...strip.querySelectorAll('i')];
  const placeOf = (event) => letters.indexOf(event.target.closest('i'));
  letters.forEach((letter, place) => (letter.title = residueName(place)));
  strip.addEventListener('pointerover', (event) => placeOf(event) >= 0 && marks.look({ residues: [placeOf(event)] }));
  strip.addEventListener('click', (event) => placeOf(event) >= 0 && marks.pin({ residues: [placeOf(event)] }));
  strip.addEventListener('pointerleave', () => marks.leave());
  keysAlong(strip);
  const paintLetters = ({ plddt }) => letters.forEach((letter, place) => (letter.className = bandOf(plddt[place]).letter));
  shown.views.push((model) => {
    paintLetters(model);
    markLetters(marks.now);
  });
  // Helices and strands as the viewer draws them, from hydrogen bonds of the backbone.
  const folds = { h: 'helix', s: 'strand' };
  shown.foldViews.push((foldOf) => {
    letters.forEach((letter, place) => (letter.dataset.fold = folds[foldOf(place)] ?? ''));
    byId('folds').hidden = !letters.some((letter) => letter.dataset.fold);
  });
  let marked = [];
  function markLetters(what) {
    marked.forEach((letter) => letter.classList.remove('first', 'second', 'away'));
    marked = [];
    const mark = (place, look) => {
      letters[place].classList.add(look);
      marked.push(letters[place]);
    };
    (what?.residues ?? []).forEach((place, number) => mark(place, number ? 'second' : 'first'));
    if (what?.residues && !strip.matches(':hover')) bringInto(letters[what.residues[0]]);
    if (what?.block) {
      const within = (place) => what.block.some(([from, to]) => place >= from && place <= to);
      letters.forEach((_, place) => within(place) || mark(place, 'away'));
    }
  }
  marks.views.push(markLetters);

  // Only the strip scrolls, not the page.
  function bringInto(letter) {
    const [box, frame] = [letter.getBoundingClientRect(), strip.getBoundingClientRect()];
    if (box.top < frame.top + 20 || box.bottom > frame.bottom) strip.scrollTop += box.top - (frame.top + frame.bottom) / 2;
  }
}
