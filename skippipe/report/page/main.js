// State shared by all charts, its changes, and the address that stores it.
"use strict";

const TALL = 18, LOW = 9;

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const plans = data.plans.map((plan) => new PlanData(plan));
  const total = Math.max(...plans.map((plan) => plan.iteration_s), 1e-9) * 1.01;
  const byId = (id) => document.getElementById(id);
  const view = { from: 0, to: total, scroll: 0, rowHeight: TALL, filter: "", microbatchId: null, task: "", critical: false };
  // All charts at once in the window, as far as it is not too low for that, and all rows of a chart if they fit.
  const above = byId("charts").getBoundingClientRect().top + window.scrollY;
  const room = Math.max((window.innerHeight - above) / plans.length - 36, 260);
  const usualHeight = fittingHeight();
  readAddress();
  const charts = plans.map((plan) => new Chart(plan, view, byId("charts"), room));
  let paint = null, queued = false;

  function fittingHeight() {
    const heights = plans.map((plan) => {
      const used = plan.stages.filter((members) => members.length).length, count = plan.stages.flat().length;
      return Math.floor((room - AXIS - MARGIN - used * STAGE_ROW) / count);
    });
    const fitting = Math.min(...heights);
    return fitting >= LOW ? Math.min(fitting, TALL) : TALL;
  }

  function redraw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(drawNow);
  }

  function drawNow() {
    queued = false;
    const ratio = window.devicePixelRatio || 1;
    paint = paint || new Paint(ratio);
    for (const chart of charts) chart.draw(paint);
    byId("critical").checked = view.critical;
    say();
    writeAddress();
  }

  function arrange() {
    for (const chart of charts) chart.arrange();
    redraw();
  }

  // ---------------------------------------------------------------- view
  function zoom(factor, at = (view.from + view.to) / 2) {
    const span = Math.min(Math.max((view.to - view.from) * factor, total * 1e-6), total);
    const share = (at - view.from) / (view.to - view.from);
    move(at - share * span, span);
  }

  function move(from, span) {
    view.from = Math.min(Math.max(from, 0), total - span);
    view.to = view.from + span;
    redraw();
  }

  function pan(share) { move(view.from + share * (view.to - view.from), view.to - view.from); }

  function scroll(pixels) {
    const lowest = Math.max(...charts.map((chart) => chart.lowest));
    view.scroll = Math.min(Math.max(Math.min(view.scroll, lowest) + pixels, 0), lowest);
    redraw();
  }

  function heighten(factor) {
    const before = view.rowHeight;
    view.rowHeight = Math.min(Math.max(Math.round(before * factor), 3), 60);
    view.scroll *= view.rowHeight / before;
    arrange();
  }

  function showAll() {
    view.scroll = 0;
    move(0, total);
  }

  function select(plan, task) {
    view.task = task === null ? "" : plan.name(task);
    view.microbatchId = task === null ? null : plan.microbatches[plan.microbatch(task)].id;
    if (view.filter.trim().toLowerCase() === "route") arrange();
    redraw();
  }

  // Select a task by its name and bring it into view.
  function find(name) {
    const chart = charts.find((entry) => entry.plan.named.has(name));
    if (!chart) return false;
    const task = chart.plan.named.get(name), row = chart.rowOf.get(chart.plan.node(task));
    select(chart.plan, task);
    const { start, end } = chart.plan, span = view.to - view.from;
    if (start[task] < view.from || end[task] > view.to) move((start[task] + end[task] - span) / 2, span);
    if (row && (chart.y(row) < AXIS || chart.y(row) + row.height > chart.height)) {
      view.scroll = Math.min(Math.max(row.top - (chart.height - AXIS) / 2, 0), chart.lowest);
    }
    redraw();
    return true;
  }

  function say() {
    const lines = [];
    for (const { plan } of charts) {
      if (!plan.named.has(view.task)) continue;
      lines.push((plans.length > 1 ? `${plan.title}: ` : "") + plan.describe(plan.named.get(view.task)).join("; "));
    }
    if (view.critical) {
      const tasks = plans.map((plan) => plan.critical.size).join(" and ");
      lines.push(`Critical path: ${tasks} tasks.`);
    }
    byId("selected").textContent = lines.join("  ");
  }

  // ---------------------------------------------------------------- address
  function readAddress() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    const number = (key, fallback) => {
      const value = Number(parameters.get(key));
      return parameters.has(key) && Number.isFinite(value) ? value : fallback;
    };
    const from = Math.min(Math.max(number("from", 0), 0), total), to = Math.min(number("to", total), total);
    [view.from, view.to] = to - from >= total * 1e-6 ? [from, to] : [0, total];
    view.rowHeight = Math.min(Math.max(number("rows", usualHeight), 3), 60);
    view.scroll = Math.max(number("top", 0), 0);
    view.critical = parameters.get("critical") === "1";
    view.filter = parameters.get("filter") || "";
    view.task = parameters.get("task") || "";
    const owner = plans.find((plan) => plan.named.has(view.task));
    view.microbatchId = owner ? owner.microbatches[owner.microbatch(owner.named.get(view.task))].id : null;
    byId("filter").value = view.filter;
  }

  let written = location.hash;
  function writeAddress() {
    const parameters = new URLSearchParams();
    if (view.from > 0 || view.to < total) {
      parameters.set("from", view.from.toFixed(6));
      parameters.set("to", view.to.toFixed(6));
    }
    if (view.task) parameters.set("task", view.task);
    if (view.critical) parameters.set("critical", "1");
    if (view.filter) parameters.set("filter", view.filter);
    if (view.rowHeight !== usualHeight) parameters.set("rows", view.rowHeight);
    if (view.scroll > 0) parameters.set("top", view.scroll.toFixed(0));
    const text = `#${parameters}`;
    if (text === written || (text === "#" && !location.hash)) return;
    written = text;
    try { history.replaceState(null, "", text); } catch { /* too many in a short time: the next one will do */ }
  }

  window.addEventListener("hashchange", () => { readAddress(); written = location.hash; arrange(); });

  // ---------------------------------------------------------------- mouse
  const tip = byId("tip");
  let drag = null;

  function showTip(chart, event) {
    const box = chart.canvas.getBoundingClientRect();
    const found = chart.at(event.clientX - box.left - 1, event.clientY - box.top - 1);
    tip.hidden = !found;
    if (!found) return;
    const { plan } = chart;
    tip.textContent = (found.task === undefined ? plan.describeNode(found.node) : plan.describe(found.task)).join("\n");
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - width - 8))}px`;
    tip.style.top = `${event.clientY + 16 + height < window.innerHeight ? event.clientY + 16
      : Math.max(4, event.clientY - height - 12)}px`;
  }

  for (const chart of charts) {
    const { canvas } = chart;
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left - 1, event.clientY - box.top - 1];
    };
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 16 : 1;
      if (event.shiftKey) scroll((event.deltaY || event.deltaX) * lines);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX * lines / chart.width);
      else zoom(Math.exp(event.deltaY * lines * 0.002), chart.time(Math.max(point(event)[0], GUTTER)));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      drag = { x: event.clientX, y: event.clientY, from: view.from, scroll: chart.scroll, moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) { showTip(chart, event); return; }
      const [right, down] = [event.clientX - drag.x, event.clientY - drag.y];
      drag.moved = drag.moved || Math.abs(right) + Math.abs(down) > 4;
      if (!drag.moved) return;
      tip.hidden = true;
      view.scroll = drag.scroll;
      scroll(-down);
      move(drag.from - right / (chart.width - GUTTER) * (view.to - view.from), view.to - view.from);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) {
        const found = chart.at(...point(event));
        select(chart.plan, found && found.task !== undefined ? found.task : null);
      }
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  // ---------------------------------------------------------------- buttons and keys
  const press = {
    "zoom-in": () => zoom(1 / 1.5), "zoom-out": () => zoom(1.5), "zoom-all": showAll,
    taller: () => heighten(1.3), flatter: () => heighten(1 / 1.3),
  };
  for (const [id, act] of Object.entries(press)) byId(id).addEventListener("click", act);
  byId("critical").addEventListener("change", (event) => { view.critical = event.target.checked; redraw(); });
  byId("filter").addEventListener("input", (event) => { view.filter = event.target.value; view.scroll = 0; arrange(); });
  byId("find").addEventListener("change", (event) => {
    event.target.setCustomValidity(!event.target.value || find(event.target.value.trim()) ? "" : "no such task");
    event.target.reportValidity();
  });

  const page = () => 0.8 * (charts[0].height - AXIS);
  const keys = {
    "+": press["zoom-in"], "=": press["zoom-in"], "-": press["zoom-out"], 0: showAll,
    ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1), ArrowUp: () => scroll(-40), ArrowDown: () => scroll(40),
    PageUp: () => scroll(-page()), PageDown: () => scroll(page()), "]": press.taller, "[": press.flatter,
    c: () => { view.critical = !view.critical; redraw(); },
    Escape: () => { view.critical = false; select(plans[0], null); },
  };
  byId("charts").addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.altKey || event.metaKey ? null : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  // ---------------------------------------------------------------- appearance
  function drawLegend() {
    for (const key of ["F", "L", "B", "R", "M"]) {
      const canvas = byId(`legend-${key}`), pen = canvas.getContext("2d");
      pen.fillStyle = key === "R" ? paint.reduce : key === "M" ? paint.held : paint.of(key, canvas.width);
      pen.clearRect(0, 0, canvas.width, canvas.height);
      if (key === "M") pen.fillRect(0, 9, canvas.width, 4);
      else pen.fillRect(0, key === "R" ? 3 : 0, canvas.width, key === "R" ? 8 : canvas.height);
    }
  }

  function repaint() {
    paint = new Paint(window.devicePixelRatio || 1);
    drawLegend();
    arrange();
  }

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  new ResizeObserver(arrange).observe(byId("charts"));
  repaint();
  drawNow();
  // For scripts that drive the page.
  window.skippipe = { view, charts, find, drawNow };
})();
