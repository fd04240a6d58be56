// A long banner, and on a phone any banner, is one line that opens when it is clicked; on paper it is whole.

const banners = [...document.querySelectorAll('details.banner')];
const LONG = 160; // characters
const isPhone = matchMedia('screen and (max-width: 640px)').matches;
banners.filter((banner) => isPhone || banner.textContent.length > LONG).forEach((banner) => (banner.open = false));
addEventListener('beforeprint', () => document.querySelectorAll('.banner, .guide').forEach((each) => (each.open = true)));
