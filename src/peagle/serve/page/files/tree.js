// A candidate tree, from left to right; the accepted path runs straight along the top.

import { svg, visible } from "./dom.js";

const ROW = 26;
const BOX = 20;
const GAP = 26;
const LETTER = 7.3;
const MARGIN = 12;
const MOST_LETTERS = 11;

function short(text) {
  const letters = [...visible(text)];
  return letters.length > MOST_LETTERS ? `${letters.slice(0, MOST_LETTERS - 1).join("")}…` : letters.join("");
}

// The nodes of a step, with the model's own token as one more at the end of the accepted path.
function nodesOf({ tokens, tree }) {
  const accepted = new Set(tree.accepted);
  const nodes = tree.tokens.map((_, place) => ({
    label: short(tree.texts[place]),
    parent: tree.parents[place],
    origin: tree.origins[place],
    accepted: accepted.has(place),
    about: `${visible(tree.texts[place])}: ${tree.origins[place]}, ${(100 * tree.probabilities[place]).toFixed(1)} % expected, ${accepted.has(place) ? "accepted" : "not accepted"}`,
  }));
  if (tokens.length > tree.accepted.length) {
    const own = tokens.at(-1);
    nodes.push({
      label: short(own.text),
      parent: tree.accepted.at(-1) ?? -1,
      origin: "target",
      accepted: true,
      about: `${visible(own.text)}: the model's own token`,
    });
  }
  return nodes;
}

// Give each node its column and row; returns how many rows there are.
function arrange(nodes) {
  const children = new Map();
  nodes.forEach((node, place) => {
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(place);
  });
  let row = 0;
  const visit = (place, depth) => {
    const below = children.get(place) ?? [];
    below.sort((one, other) => nodes[other].accepted - nodes[one].accepted || one - other);
    if (place >= 0) Object.assign(nodes[place], { depth, row });
    below.forEach((child, rank) => {
      if (rank > 0) row += 1;
      visit(child, depth + 1);
    });
  };
  visit(-1, 0);
  return row + 1;
}

export function drawTree(step, before) {
  const nodes = nodesOf(step);
  const rows = arrange(nodes);
  const root = short(before);
  const widths = [root.length * LETTER + 14];
  for (const node of nodes) {
    node.width = [...node.label].length * LETTER + 12;
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  }
  const left = [MARGIN];
  widths.forEach((width, depth) => left.push(left[depth] + width + GAP));
  const y = (row) => MARGIN + BOX / 2 + row * ROW;
  const edges = [];
  const boxes = [];
  for (const node of nodes) {
    const parent = nodes[node.parent];
    const from = parent ? [left[parent.depth] + parent.width, y(parent.row)] : [left[0] + widths[0], y(0)];
    const to = [left[node.depth], y(node.row)];
    const middle = to[0] - GAP / 2;
    edges.push([node.accepted, svg("path", {
      d: `M${from} H${to[0] - GAP} C${middle},${from[1]} ${middle},${to[1]} ${to}`,
      ...(node.accepted && { class: "accepted" }),
    })]);
    boxes.push(
      svg("g", { class: `${node.origin} ${node.accepted ? "accepted" : "rejected"}` },
        svg("title", {}, node.about),
        svg("rect", { x: to[0], y: to[1] - BOX / 2, width: node.width, height: BOX, rx: node.origin === "target" ? 10 : 3 }),
        svg("text", { x: to[0] + 6, y: to[1] + 4 }, node.label)),
    );
  }
  edges.sort((one, other) => one[0] - other[0]);
  const width = left.at(-1) - GAP + MARGIN;
  const height = y(rows - 1) + BOX / 2 + MARGIN;
  const path = step.tokens.map((token) => visible(token.text)).join(" ");
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Candidate tree of ${step.tree.tokens.length} draft tokens. Written: ${path}` },
    ...edges.map(([, edge]) => edge),
    svg("text", { x: left[0], y: y(0) + 4 }, root),
    ...boxes);
}
