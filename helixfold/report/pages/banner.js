// On a phone, a banner is one line that opens when it is tapped; on paper it is whole.

const banners = [...document.querySelectorAll('details.banner')];
if (matchMedia('screen and (max-width: 640px)').matches) banners.forEach((banner) => (banner.open = false));
addEventListener('beforeprint', () => banners.forEach((banner) => (banner.open = true)));
