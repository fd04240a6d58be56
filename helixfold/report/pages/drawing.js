// Tools for plots: a sharp canvas, a colour scale, SVG elements.

// Return a canvas context with the resolution of the screen, in units of the page.
function sharp(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = '12px system-ui, sans-serif';
  pen.fillStyle = colour('faint');
  pen.strokeStyle = colour('line');
  return pen;
}

function ramp(colours, steps) {
  const rgb = colours.map((text) => [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16)));
  return Array.from({ length: steps }, (_, step) => {
    const at = (step / (steps - 1)) * (rgb.length - 1);
    const low = Math.min(Math.floor(at), rgb.length - 2);
    return rgb[low].map((value, channel) => value + (rgb[low + 1][channel] - value) * (at - low));
  });
}

const svg = (name, attributes = {}, ...children) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
};
