// Colours and patterns, from the style sheet: forward, loss and backward differ in lightness and in pattern.
"use strict";

class Paint {
  constructor(ratio) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    for (const name of ["paper", "ink", "soft", "line", "band", "accent", "reduce", "held", "full"]) {
      this[name] = colour(name);
    }
    this.fill = { F: colour("forward"), L: colour("loss"), B: colour("backward") };
    this.text = { F: colour("forward-ink"), L: colour("loss-ink"), B: colour("backward-ink") };
    this.pattern = {
      F: null,
      L: makePattern(ratio, this.fill.L, colour("loss-mark"), (pen, size) => {
        pen.fillRect(0, 0, size / 4, size / 4);
        pen.fillRect(size / 2, size / 2, size / 4, size / 4);
      }),
      B: makePattern(ratio, this.fill.B, colour("backward-mark"), (pen, size) => {
        pen.lineWidth = size / 8;
        for (const shift of [-size, 0, size]) {
          pen.beginPath();
          pen.moveTo(shift, size);
          pen.lineTo(shift + size, 0);
          pen.stroke();
        }
      }),
    };
  }

  // Narrow bars show no pattern, only lightness.
  of(kind, width) { return (width >= 5 && this.pattern[kind]) || this.fill[kind]; }
}

function makePattern(ratio, ground, mark, draw) {
  const size = Math.round(8 * ratio), tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, size, size);
  pen.fillStyle = pen.strokeStyle = mark;
  draw(pen, size);
  const pattern = pen.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0]));
  return pattern;
}
