// The binder that is shown in three dimensions: its scores, its predicted aligned errors and its losses.

const rowOf = (number) => document.querySelector(`[data-model="${number}"]`).closest('tr');

function showBinder(number) {
  const { name, letters, sequence, scores, losses } = data.models[number];
  data.sequence = sequence; // labels of residues read it
  const picture = rowOf(number).querySelector('img');
  byId('chosen-name').textContent = `Rank ${number + 1}: ${name}`;
  byId('chosen-sequence').textContent = letters;
  byId('chosen-scores').replaceChildren(
    ...scores.map(([title, value]) => {
      const row = document.createElement('tr');
      row.append(document.createElement('th'), document.createElement('td'));
      [row.cells[0].textContent, row.cells[1].textContent] = [title, value];
      row.cells[1].className = 'n';
      return row;
    }),
  );
  byId('chosen-pae').hidden = !picture;
  if (picture) byId('chosen-pae').querySelector('img').src = picture.src;
  byId('chosen-loss').firstElementChild.setAttribute('points', rowOf(number).querySelector('polyline').getAttribute('points'));
  byId('chosen-steps').textContent = `Loss of its trajectory: ${losses[0]} at first, ${losses[1]} at the end of ${losses[2]} steps.`;
  shown.choose(number);
}

byId('colour').value = 'chain';
byId('model').addEventListener('change', (event) => showBinder(Number(event.target.value)));
byId('next').addEventListener('click', () => showBinder((Number(byId('model').value) + 1) % data.models.length));
document.querySelectorAll('[data-model]').forEach((button) =>
  button.addEventListener('click', () => {
    showBinder(Number(button.dataset.model));
    byId('structure-section').scrollIntoView({ behavior: 'smooth', block: 'nearest' });
  }),
);
showBinder(0);
startStructure().then(
  () => (document.documentElement.dataset.ready = 'yes'),
  (error) => say(`This page is damaged, or the browser too old to unpack it (${error.message}).`),
);
