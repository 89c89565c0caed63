// One plan's chart on a canvas. Draws only the rows and times that are in view.
"use strict";

const GUTTER = 150, AXIS = 22, STAGE_ROW = 16, MARGIN = 6, HELD_FROM = 9;

class Chart {
  constructor(plan, view, holder, height) {
    this.plan = plan;
    this.view = view;
    this.name = document.createElement("div");
    this.name.className = "name";
    this.name.textContent = plan.title;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `Gantt chart of ${plan.title}`);
    const box = document.createElement("div");
    box.className = "chart";
    box.append(this.name, this.canvas);
    holder.append(box);
    this.most = height;
    this.arrange();
  }

  // Rows that pass the filter, by stage and region, with their vertical positions.
  arrange() {
    const { plan, view } = this, wanted = view.filter.trim().toLowerCase();
    const stageWanted = /^(?:stage|s)\s*(\d+)$/.exec(wanted);
    const onPath = wanted === "path" ? new Set([...plan.critical].map((task) => plan.node(task))) : null;
    const onRoute = wanted === "route" ? new Set(plan.nodesOf(view.microbatchId)) : null;
    const shown = (node, stage) => !wanted || (stageWanted ? Number(stageWanted[1]) === stage
      : (onPath || onRoute) ? (onPath || onRoute).has(node) : plan.nodes[node].toLowerCase().includes(wanted));
    this.rows = [];
    let top = 0;
    const put = (row) => { row.top = top; top += row.height; this.rows.push(row); };
    plan.stages.forEach((members, stage) => {
      const nodes = members.filter((node) => shown(node, stage));
      if (!nodes.length) return;
      if (plan.region_of) nodes.sort((a, b) => plan.region_of[a] - plan.region_of[b]);
      put({ stage, node: -1, height: STAGE_ROW, shown: nodes.length, of: members.length });
      for (const node of nodes) put({ stage, node, height: view.rowHeight });
    });
    this.total = top;
    this.rowOf = new Map(this.rows.filter((row) => row.node >= 0).map((row) => [row.node, row]));
    this.fit();
  }

  fit() {
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(this.canvas.parentElement.clientWidth - 2, 320);
    this.height = Math.min(this.most, AXIS + this.total + MARGIN);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.ratio = ratio;
  }

  get lowest() { return Math.max(0, this.total + MARGIN - (this.height - AXIS)); }
  get scroll() { return Math.min(this.view.scroll, this.lowest); }
  x(time) { return GUTTER + (time - this.view.from) / (this.view.to - this.view.from) * (this.width - GUTTER); }
  time(x) { return this.view.from + (x - GUTTER) / (this.width - GUTTER) * (this.view.to - this.view.from); }
  y(row) { return AXIS + row.top - this.scroll; }

  firstRow() {
    let low = 0, high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1, row = this.rows[middle];
      if (row.top + row.height > this.scroll) high = middle; else low = middle + 1;
    }
    return low;
  }

  visibleRows() {
    const rows = [];
    for (let i = this.firstRow(); i < this.rows.length && this.y(this.rows[i]) < this.height; i++) rows.push(this.rows[i]);
    return rows;
  }

  // Vertical extent of a bar in its row; the memory line is below.
  bar(row) { return { y: this.y(row) + 1, height: Math.max(row.height - (row.height >= HELD_FROM ? 5 : 2), 2) }; }

  draw(paint) {
    const pen = this.canvas.getContext("2d");
    this.pen = pen;
    this.paint = paint;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = paint.paper;
    pen.fillRect(0, 0, this.width, this.height);
    this.drawn = 0;
    const rows = this.visibleRows();
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, AXIS, this.width - GUTTER, this.height - AXIS);
    pen.clip();
    this.drawGround(rows);
    for (const row of rows) if (row.node >= 0) this.drawLane(row); else this.drawReduce(row);
    this.drawWays();
    pen.restore();
    this.drawLabels(rows);
    this.drawAxis();
    this.drawScrollBar();
  }

  drawGround(rows) {
    const { pen, paint, plan } = this;
    pen.fillStyle = paint.band;
    for (const row of rows) if (row.node < 0) pen.fillRect(GUTTER, this.y(row), this.width - GUTTER, row.height);
    pen.strokeStyle = paint.line;
    pen.lineWidth = 1;
    pen.beginPath();
    for (const time of this.ticks()) {
      const x = Math.round(this.x(time)) + 0.5;
      pen.moveTo(x, AXIS);
      pen.lineTo(x, this.height);
    }
    pen.stroke();
    const body = plan.iteration_s - plan.epilogue_s;
    if (plan.epilogue_s > 0) {
      pen.fillStyle = paint.reduce;
      pen.globalAlpha = 0.35;
      pen.fillRect(this.x(body), AXIS, this.x(plan.iteration_s) - this.x(body), this.height);
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = paint.ink;
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(this.x(plan.iteration_s), AXIS);
    pen.lineTo(this.x(plan.iteration_s), this.height);
    pen.stroke();
    pen.setLineDash([]);
  }

  drawLane(row) {
    const { plan, view, pen } = this, lane = plan.lanes[row.node], { y, height } = this.bar(row);
    if (row.height >= HELD_FROM) this.drawHeld(row);
    let lastRight = -1;
    for (let i = plan.firstAfter(lane, view.from); i < lane.length; i++) {
      const task = lane[i];
      if (plan.start[task] > view.to) break;
      const left = this.x(plan.start[task]), right = Math.max(this.x(plan.end[task]), left + 1);
      if (right - left <= 1 && left < lastRight && !this.marked(task)) continue;
      lastRight = right;
      this.drawTask(task, left, right - left, y, height);
    }
    pen.globalAlpha = 1;
  }

  // Whether something is highlighted and the rest dimmed.
  get quiet() { return this.view.microbatchId !== null || this.view.critical; }

  marked(task) {
    const { plan, view } = this;
    return (view.microbatchId !== null && plan.microbatches[plan.microbatch(task)].id === view.microbatchId)
      || (view.critical && plan.critical.has(task));
  }

  drawTask(task, left, width, y, height) {
    const { pen, paint, plan, view } = this, kind = plan.kind(task), marked = this.marked(task);
    this.drawn++;
    pen.globalAlpha = marked || !this.quiet ? 1 : 0.28;
    const gap = width > 4 ? 1 : 0;
    pen.fillStyle = paint.of(kind, width);
    pen.fillRect(left, y, width - gap, height);
    const name = plan.name(task);
    if (height >= 10 && width > 7 * name.length + 6) {
      const size = pen.measureText(name).width;
      if (paint.pattern[kind]) {
        pen.fillStyle = paint.fill[kind];
        pen.fillRect(left + (width - size) / 2 - 3, y, size + 6, height);
      }
      pen.fillStyle = paint.text[kind];
      pen.fillText(name, left + (width - size) / 2, y + height / 2 + 0.5);
    }
    if (!marked) return;
    pen.lineWidth = 2;
    pen.strokeStyle = view.critical && plan.critical.has(task) ? paint.accent : paint.ink;
    pen.strokeRect(left + 1, y + 1, Math.max(width - gap - 2, 1), height - 2);
  }

  // Microbatches in memory, as a filled step line below the bars; full height: the node's memory.
  drawHeld(row) {
    const { pen, paint, plan, view } = this, steps = plan.held[row.node], memory = plan.memory[row.node];
    const bottom = this.y(row) + row.height - 1, tall = 3;
    pen.globalAlpha = this.quiet ? 0.4 : 1;
    for (let i = 0; i < steps.length; i++) {
      const [from, held] = steps[i], to = i + 1 < steps.length ? steps[i + 1][0] : from;
      if (!held || to < view.from || from > view.to) continue;
      const share = Math.min(held / memory, 1);
      pen.fillStyle = held >= memory ? paint.full : paint.held;
      pen.fillRect(this.x(from), bottom - tall * share, Math.max(this.x(to) - this.x(from), 0.5), tall * share);
    }
  }

  drawReduce(row) {
    const { pen, paint, plan } = this, reduce = plan.allreduce.find((entry) => entry.stage === row.stage);
    if (!reduce) return;
    const left = this.x(reduce.start), width = Math.max(this.x(reduce.end) - left, 1);
    pen.fillStyle = paint.reduce;
    pen.fillRect(left, this.y(row) + 4, width, row.height - 8);
    if (!this.view.critical || !plan.path.some((part) => part.stage === row.stage)) return;
    pen.strokeStyle = paint.accent;
    pen.lineWidth = 2;
    pen.strokeRect(left, this.y(row) + 4, width, row.height - 8);
  }

  // Messages of the selected microbatch and of the critical path, as lines between rows.
  drawWays() {
    const { plan, view, paint } = this;
    if (view.microbatchId !== null) {
      const microbatch = plan.microbatches.findIndex((entry) => entry.id === view.microbatchId);
      if (microbatch >= 0) {
        for (const hop of plan.transfers(microbatch)) this.drawHop(hop.from, hop.to, hop.leave, hop.arrive, paint.ink);
      }
    }
    if (!view.critical) return;
    for (const part of plan.path) {
      if (part.part === "transfer") this.drawHop(part.link[0], part.link[1], part.start, part.end, paint.accent);
    }
  }

  drawHop(from, to, leave, arrive, colour) {
    const start = this.rowOf.get(from), end = this.rowOf.get(to), { pen } = this;
    if (!start || !end) return;
    const middle = (row) => { const { y, height } = this.bar(row); return y + height / 2; };
    const [x0, y0, x1, y1] = [this.x(leave), middle(start), this.x(arrive), middle(end)];
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.6;
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    const angle = Math.atan2(y1 - y0, x1 - x0);
    pen.beginPath();
    pen.moveTo(x1, y1);
    for (const side of [-1, 1]) pen.lineTo(x1 - 7 * Math.cos(angle + side * 0.4), y1 - 7 * Math.sin(angle + side * 0.4));
    pen.closePath();
    pen.fill();
  }

  drawLabels(rows) {
    const { pen, paint, plan } = this;
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, GUTTER - 6, this.height - AXIS);
    pen.clip();
    for (const row of rows) {
      const middle = this.y(row) + row.height / 2;
      if (row.node < 0) {
        pen.fillStyle = paint.band;
        pen.fillRect(0, this.y(row), GUTTER, row.height);
        pen.fillStyle = paint.ink;
        pen.font = "600 12px system-ui, sans-serif";
        const some = row.shown < row.of ? `${row.shown} of ${row.of}` : row.of === 1 ? "1 node" : `${row.of} nodes`;
        const name = `stage ${row.stage}`, after = 12 + pen.measureText(name).width;
        pen.fillText(name, 6, middle);
        pen.font = "12px system-ui, sans-serif";
        pen.fillStyle = paint.soft;
        pen.fillText(some, after, middle);
      } else if (row.height >= 9) {
        pen.font = `${Math.min(12, row.height)}px system-ui, sans-serif`;
        pen.fillStyle = paint.ink;
        pen.fillText(this.shortened(plan.nodes[row.node], GUTTER - 24), 14, middle);
      }
    }
    pen.restore();
  }

  shortened(text, width) {
    if (this.pen.measureText(text).width <= width) return text;
    let short = text;
    while (short.length > 1 && this.pen.measureText(`${short}\u2026`).width > width) short = short.slice(0, -1);
    return `${short}\u2026`;
  }

  // Round times, about a hundred pixels apart.
  ticks() {
    const span = this.view.to - this.view.from, rough = span / Math.max((this.width - GUTTER) / 100, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const ticks = [];
    for (let i = Math.ceil(this.view.from / step); i * step <= this.view.to; i++) ticks.push(i * step);
    this.digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    return ticks;
  }

  drawAxis() {
    const { pen, paint, plan } = this;
    pen.fillStyle = paint.paper;
    pen.fillRect(0, 0, this.width, AXIS);
    pen.font = "600 12px system-ui, sans-serif";
    const end = `${plan.iteration_s.toFixed(3)} s`, endWidth = pen.measureText(end).width;
    pen.font = "12px system-ui, sans-serif";
    const endX = Math.min(this.x(plan.iteration_s), this.width - endWidth / 2 - 4);
    const endShown = this.x(plan.iteration_s) >= GUTTER && this.x(plan.iteration_s) <= this.width + 1;
    pen.fillStyle = paint.soft;
    for (const time of this.ticks()) {
      const text = `${time.toFixed(Math.min(this.digits, 9))} s`, width = pen.measureText(text).width, x = this.x(time);
      if (endShown && Math.abs(x - endX) < (width + endWidth) / 2 + 8) continue;
      if (x + width / 2 < this.width) pen.fillText(text, Math.max(x - width / 2, GUTTER - 10), AXIS / 2);
    }
    if (endShown) {
      pen.fillStyle = paint.ink;
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(end, endX - endWidth / 2, AXIS / 2);
    }
    pen.strokeStyle = paint.line;
    pen.lineWidth = 1;
    pen.strokeRect(GUTTER - 0.5, AXIS - 0.5, this.width, this.height);
  }

  drawScrollBar() {
    if (!this.lowest) return;
    const { pen, paint } = this, room = this.height - AXIS, share = room / (this.total + MARGIN);
    pen.fillStyle = paint.soft;
    pen.globalAlpha = 0.6;
    pen.fillRect(this.width - 5, AXIS + this.scroll * share, 4, Math.max(room * share, 12));
    pen.globalAlpha = 1;
  }

  // Hit test at a point of the canvas: a task, the label of a node, or nothing.
  at(x, y) {
    if (y < AXIS) return null;
    const row = this.visibleRows().find((entry) => y >= this.y(entry) && y < this.y(entry) + entry.height);
    if (!row || row.node < 0) return null;
    if (x < GUTTER) return { node: row.node };
    const { plan } = this, lane = plan.lanes[row.node], reach = this.time(x + 2) - this.time(x);
    for (let i = plan.firstAfter(lane, this.time(x) - reach); i < lane.length; i++) {
      if (plan.start[lane[i]] > this.time(x) + reach) break;
      if (plan.end[lane[i]] >= this.time(x) - reach) return { task: lane[i] };
    }
    return null;
  }

  // The middle of a task's bar, in pixels of the window.
  barPosition(task) {
    const row = this.rowOf.get(this.plan.node(task));
    if (!row) return null;
    const { y, height } = this.bar(row), box = this.canvas.getBoundingClientRect();
    const x = (this.x(this.plan.start[task]) + this.x(this.plan.end[task])) / 2;
    return { x: box.left + 1 + x, y: box.top + 1 + y + height / 2 };
  }
}
