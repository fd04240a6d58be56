// Start the page's views, which share the marked residues and the displayed model.

// In a frame of another page, show only the structure.
document.documentElement.classList.toggle('only-structure', location.hash === '#only-structure');

byId('model').addEventListener('change', (event) => shown.choose(Number(event.target.value)));
document.querySelectorAll('[data-model]').forEach((button) =>
  button.addEventListener('click', () => {
    shown.choose(Number(button.dataset.model));
    byId('structure-section').scrollIntoView({ behavior: 'smooth', block: 'nearest' });
  }),
);
document.querySelectorAll('[data-part]').forEach((button) =>
  button.addEventListener('click', () => {
    byId('colour').value = button.dataset.of;
    byId('colour').dispatchEvent(new Event('change'));
    byId('structure-section').scrollIntoView({ behavior: 'smooth', block: 'nearest' });
  }),
);
document.querySelectorAll('[data-pair]').forEach((button) =>
  button.addEventListener('click', () => {
    marks.pin({ block: button.dataset.pair.split(' ').map(placesOfChain) });
    byId('structure-section').scrollIntoView({ behavior: 'smooth', block: 'nearest' });
  }),
);

startSequence();
startPlot();
Promise.all([startStructure(), startHeatMap(), startAlignment()]).then(
  () => (document.documentElement.dataset.ready = 'yes'),
  (error) => {
    console.error(error);
    say(`This page is damaged, or the browser is too old to unpack it (${error.message}). The files in its directory have the same data.`);
  },
);
