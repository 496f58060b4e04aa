// Draws the graph of operators from left to right: layers, as in Sugiyama's method, and a curve for each edge.

const WIDTH = 230, HEIGHT = 118, COLUMN_GAP = 96, ROW_GAP = 26, PASSING = 14, SVG = "http://www.w3.org/2000/svg";
const COLOURS = { idle: [93, 177, 255], busy: [238, 100, 100], backPressured: [51, 51, 51] }; // Flink's

/** Returns the layer of each vertex: sources are in the first one, others behind all of their inputs. */
function layersOf(vertices) {
  const byUid = new Map(vertices.map((vertex) => [vertex.uid, vertex])), layers = new Map();
  const layerOf = (uid, path) => {
    if (!layers.has(uid)) {
      const before = byUid.get(uid).inputs.filter((edge) => byUid.has(edge.uid) && !path.has(edge.uid));
      layers.set(uid, Math.max(-1, ...before.map((edge) => layerOf(edge.uid, new Set(path).add(uid)))) + 1);
    }
    return layers.get(uid);
  };
  for (const vertex of vertices) layerOf(vertex.uid, new Set());
  return layers;
}

/**
 * Places the vertices. An edge that passes layers has a place in each of them, so that it crosses no vertex.
 *
 * @returns {{places: Map, edges: Array, width: number, height: number}}
 */
export function layout(vertices) {
  const layers = layersOf(vertices), columns = [], places = new Map(), edges = [];
  const add = (key, layer, height) => {
    const place = { key, layer, height, before: [], behind: [], y: 0 };
    places.set(key, place);
    (columns[layer] ??= []).push(place);
    return place;
  };
  for (const vertex of vertices) add(vertex.uid, layers.get(vertex.uid), HEIGHT);
  for (const vertex of vertices) {
    vertex.inputs.filter((edge) => places.has(edge.uid)).forEach((edge, number) => {
      const path = [places.get(edge.uid)];
      for (let layer = layers.get(edge.uid) + 1; layer < layers.get(vertex.uid); layer++) {
        path.push(add(`${edge.uid}>${vertex.uid}>${number}>${layer}`, layer, PASSING));
      }
      path.push(places.get(vertex.uid));
      path.slice(1).forEach((place, i) => {
        place.before.push(path[i]);
        path[i].behind.push(place);
      });
      edges.push({ ...edge, target: vertex.uid, path });
    });
  }
  arrange(columns);
  const height = Math.max(...columns.map(heightOf));
  for (const place of places.values()) place.x = place.layer * (WIDTH + COLUMN_GAP);
  return { places, edges, width: columns.length * (WIDTH + COLUMN_GAP) - COLUMN_GAP, height };
}

const heightOf = (column) => column.reduce((sum, place) => sum + place.height + ROW_GAP, -ROW_GAP);
const middle = (place) => place.y + place.height / 2;

/** Orders each column by where its neighbours are, to and fro, and moves places next to them. */
function arrange(columns) {
  const height = Math.max(...columns.map(heightOf));
  for (const column of columns) stack(column, (height - heightOf(column)) / 2);
  for (let sweep = 0; sweep < 8; sweep++) {
    const forward = sweep % 2 === 0;
    for (const column of forward ? columns : columns.toReversed()) {
      for (const place of column) {
        const near = forward ? place.before : place.behind;
        place.wish = near.length ? near.reduce((sum, each) => sum + middle(each), 0) / near.length : middle(place);
      }
      column.sort((a, b) => a.wish - b.wish);
      settle(column, height);
    }
  }
}

function stack(column, top) {
  for (const place of column) {
    place.y = top;
    top += place.height + ROW_GAP;
  }
}

/** Puts each place where it wishes to be, as far as those above it and the bottom allow. */
function settle(column, height) {
  let top = 0;
  for (const place of column) {
    place.y = Math.max(place.wish - place.height / 2, top);
    top = place.y + place.height + ROW_GAP;
  }
  let bottom = height;
  for (const place of column.toReversed()) {
    place.y = Math.min(place.y, bottom - place.height);
    bottom = place.y - ROW_GAP;
  }
}

/** Returns the colour of an operator: a mixture by the time in each state. */
export function mixed(times) {
  const [r, g, b] = [0, 1, 2].map((i) =>
    Math.round(Object.entries(COLOURS).reduce((sum, [state, rgb]) => sum + (rgb[i] * times[state]) / 1000, 0)));
  return { fill: `rgb(${r}, ${g}, ${b})`, ink: 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#0b1a2b" : "#fff" };
}

/**
 * Draws the graph.
 *
 * @param {HTMLElement} canvas where
 * @param {Array} vertices the operators with their inputs
 * @param {function(object): Element} card returns what is in the box of an operator
 */
export function draw(canvas, vertices, card) {
  const { places, edges, width, height } = layout(vertices);
  const scale = Math.max(0.62, Math.min(1, canvas.clientWidth / width));
  const svg = element("svg", { width: width * scale, height: (height + 4) * scale, viewBox: `0 -2 ${width} ${height + 4}` });
  svg.append(arrowHead());
  const labels = [];
  for (const edge of edges) {
    const kind = edge.chained ? "chained" : edge.partitioner;
    const line = element("path", { d: curve(edge.path), class: `edge ${kind}`, "marker-end": "url(#arrow)" });
    line.dataset.edge = `${edge.uid} ${edge.target}`;
    svg.append(line);
    if (!edge.chained) labels.push(label(edge));
  }
  svg.append(...labels);
  for (const vertex of vertices) {
    const { x, y } = places.get(vertex.uid);
    const box = element("foreignObject", { x, y, width: WIDTH, height: HEIGHT });
    box.append(card(vertex));
    svg.append(box);
  }
  canvas.replaceChildren(svg);
}

function curve(path) {
  const points = path.flatMap((place, i) => {
    const y = middle(place);
    if (place.height === PASSING) return [[place.x, y], [place.x + WIDTH, y]];
    return i === 0 ? [[place.x + WIDTH, y]] : [[place.x - 7, y]];
  });
  return points.map(([x, y], i) => {
    if (i === 0) return `M${x},${y}`;
    const [fromX, fromY] = points[i - 1], half = (x - fromX) / 2;
    return `C${fromX + half},${fromY} ${x - half},${y} ${x},${y}`;
  }).join(" ");
}

/** The label is at the end of the edge, where no other edge with another kind may begin. */
function label(edge) {
  const [from, to] = edge.path.slice(-2);
  const text = element("text", { x: to.x - COLUMN_GAP / 2 - 4, y: (middle(from) + middle(to)) / 2 - 7, class: "label" });
  text.textContent = edge.partitioner.toUpperCase();
  return text;
}

function arrowHead() {
  const defs = element("defs", {});
  const marker = element("marker", {
    id: "arrow", viewBox: "0 0 10 10", refX: 5, refY: 5, markerWidth: 8, markerHeight: 8, orient: "auto",
    markerUnits: "userSpaceOnUse",
  });
  marker.append(element("path", { d: "M0,0 L10,5 L0,10 z", class: "arrow" }));
  defs.append(marker);
  return defs;
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
