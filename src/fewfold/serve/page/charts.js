// Charts as inline SVG. Each has its numbers in a table or a sentence beside it.

import { build, draw } from "./dom.js";

/** Round numbers from 0 or the lowest value to the highest, for an axis. */
function ticks(low, high, about = 4) {
  const raw = (high - low || 1) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((one) => one * power >= raw) ?? 10);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) found.push(x);
  return found;
}

const short = (x) => (Math.abs(x) >= 1e4 ? x.toExponential(1) : String(Number(x.toPrecision(3))));

/** As wide as there is room for, so that letters keep their size on a phone. */
const room = () => Math.max(260, Math.min(600, document.documentElement.clientWidth - 72));

/** A line through points [x, y], with axes and the last value written at its end. */
export function lineChart(title, lines, xName) {
  const width = Math.min(520, room()), height = 220;
  const all = lines.flatMap((line) => line.points);
  const [xs, ys] = [0, 1].map((i) => all.map((point) => point[i]));
  const left = 46, right = 56, top = 12, bottom = 36;
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const pad = (Math.max(...ys) - Math.min(...ys) || Math.abs(ys[0]) || 1) * 0.06;
  const [y0, y1] = [Math.min(...ys) - pad, Math.max(...ys) + pad];
  const X = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (width - left - right);
  const Y = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const whole = ticks(x0, x1, 6).filter(Number.isInteger);
  return build("figure.chart", {}, draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
    ticks(y0, y1).map((y) => [
      draw("line.grid", { x1: left, x2: width - right, y1: Y(y), y2: Y(y) }),
      draw("text", { x: left - 8, y: Y(y) + 4, "text-anchor": "end" }, short(y))]),
    whole.map((x) => draw("text", { x: X(x), y: height - bottom + 18, "text-anchor": "middle" }, String(x))),
    draw("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, xName),
    lines.map((line, i) => {
      const [x, y] = line.points.at(-1);
      return draw(`g.line-${i % 4}`, {},
        draw("polyline", { points: line.points.map((point) => `${X(point[0])},${Y(point[1])}`).join(" ") }),
        draw("circle", { cx: X(x), cy: Y(y), r: 3 }),
        draw("text", { x: X(x) + 8, y: Y(y) + 4 }, short(y)));
    })), build("figcaption", {}, title));
}

/** Means with their intervals, one row each: rows of {name, mean, low, high, strong}. */
export function intervals(title, rows) {
  const width = room(), left = 92, right = 64, line = 26, top = 6, height = top + rows.length * line + 30;
  const high = Math.max(...rows.map((row) => row.high), 1e-9);
  const X = (x) => left + (x / high) * (width - left - right);
  return build("figure.chart", {}, draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
    ticks(0, high).map((x) => [
      draw("line.grid", { x1: X(x), x2: X(x), y1: top, y2: height - 26 }),
      draw("text", { x: X(x), y: height - 8, "text-anchor": "middle" }, short(x))]),
    rows.map((row, i) => {
      const y = top + i * line + line / 2;
      return draw(row.strong ? "g.interval.strong" : "g.interval", {},
        draw("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, row.name),
        draw("rect", { x: X(0), y: y - 6, width: Math.max(0, X(row.mean) - X(0)), height: 12, rx: 2 }),
        draw("line.whisker", { x1: X(row.low), x2: X(row.high), y1: y, y2: y }),
        draw("text", { x: X(row.high) + 8, y: y + 4 }, row.mean.toFixed(4)));
    })), build("figcaption", {}, title));
}

/** A small line of recent values from zero up, without axes. */
export function sparkline(recent, label) {
  const values = recent.length > 1 ? recent : [...recent, ...recent];
  const width = 160, height = 36, high = 1.3 * Math.max(...values, 1e-9);
  const points = values.map((value, i) =>
    `${(width * i) / (values.length - 1)},${height - 3 - (value / high) * (height - 6)}`);
  return draw("svg.spark", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    draw("polyline", { points: points.join(" ") }));
}
