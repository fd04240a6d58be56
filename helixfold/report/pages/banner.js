// Collapse long banners, and on a phone all banners, to one line that opens on a click; print them in full.

const banners = [...document.querySelectorAll('details.banner')];
const LONG = 160; // characters
const isPhone = matchMedia('screen and (max-width: 640px)').matches;
banners.filter((banner) => isPhone || banner.textContent.length > LONG).forEach((banner) => (banner.open = false));
addEventListener('beforeprint', () => document.querySelectorAll('.banner, .guide').forEach((each) => (each.open = true)));
