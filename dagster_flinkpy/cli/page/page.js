// Shows one job. It asks for `job.json`, which is what `flinkpy job show --json` prints, and draws what has changed.

import { draw, mixed } from "./graph.js";

const EVERY_MS = 2000, END_OF_INPUT = 9e18, SHOWN = {};
const STATES = ["CREATED", "SCHEDULED", "DEPLOYING", "RUNNING", "FINISHED", "CANCELING", "CANCELED", "FAILED"];
const PHASES = ["trigger", "plan", "spark", "metadata", "head", "commit", "waiting"];
let job, selected = null;

// --- text -----------------------------------------------------------------------------------------------------------

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const number = (value) => (value === undefined || value === null ? "–" : exact.format(value));
const short = (value) => (value === undefined || value === null ? "–" : compact.format(value));
const millis = (value) => (value === undefined || value === null ? "–" : `${exact.format(value)} ms`);
const percent = (perSecond) => `${Math.round(perSecond / 10)} %`;

function bytes(value) {
  if (value === undefined || value === null) return "–";
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; Math.abs(value) >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${exact.format(value)} ${units[unit]}`;
}

function time(value) {
  if (value === undefined || value === null) return "–";
  if (value >= END_OF_INPUT) return "end of input";
  const date = new Date(value);
  return Number.isNaN(date.getTime()) ? `${value} ms` : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function duration(value) {
  const seconds = Math.max(0, Math.round(value / 1000));
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].map(([size, unit], i, all) =>
    [Math.floor((i ? seconds % all[i - 1][0] : seconds) / size), unit]);
  const first = parts.findIndex(([count]) => count > 0);
  return parts.slice(first < 0 ? 3 : first, first < 0 ? 4 : first + 2).map(([n, unit]) => `${n} ${unit}`).join(" ");
}

// --- elements. Text is only ever text: nothing that a job stores becomes markup ---------------------------------------

function make(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.map((child) => child ?? "–"));
  return made;
}

/** Columns whose name starts with `#` are right-aligned, for numbers. */
function table(columns, rows) {
  const right = columns.map((column) => column.startsWith("#"));
  const cell = (name) => (content, i) => make(name, right[i] ? "number" : "", content);
  const head = make("tr", "", ...columns.map((column, i) => cell("th")(column.replace("#", ""), i)));
  const body = rows.map((row) => {
    const { cells, className = "", click } = Array.isArray(row) ? { cells: row } : row;
    const line = make("tr", className, ...cells.map(cell("td")));
    if (click) line.addEventListener("click", click);
    return line;
  });
  return make("div", "scroll", make("table", "", make("thead", "", head), make("tbody", "", ...body)));
}

const note = (text) => make("p", "note", text);

/** A bar of parts, each with a class and a size. */
function bar(parts, title, whole) {
  const sum = whole ?? parts.reduce((all, [, size]) => all + size, 0), made = make("span", "bar");
  for (const [className, size] of parts) {
    const part = make("i", className);
    part.style.width = `${sum ? (100 * size) / sum : 0}%`;
    made.append(part);
  }
  made.title = title;
  return made;
}

function dot(state) {
  const made = make("span", "state", make("i", `dot ${state.toLowerCase()}`), state);
  return made;
}

// --- where the time goes ----------------------------------------------------------------------------------------------

function timesOf(metrics) {
  if (metrics?.busyTimeMsPerSecond === undefined) return null;
  return {
    busy: metrics.busyTimeMsPerSecond,
    backPressured: metrics.backPressuredTimeMsPerSecond,
    idle: metrics.idleTimeMsPerSecond,
  };
}

function timeBar(metrics) {
  const times = timesOf(metrics);
  if (!times) return "–";
  const said = `busy ${percent(times.busy)}, back-pressured ${percent(times.backPressured)}, idle ${percent(times.idle)}`;
  return bar([["busy", times.busy], ["back-pressured", times.backPressured], ["idle", times.idle]], said);
}

/** As in Flink: one subtask that is busy all the time slows all others down. */
const most = (uid, metric) => Math.max(...(job.operators[uid]?.subtasks ?? []).map((each) => each[metric] ?? 0));

// --- the parts of the page ----------------------------------------------------------------------------------------------

function card(vertex) {
  const metrics = job.metrics[vertex.uid], times = timesOf(metrics);
  const head = make("div", "head", make("b", "", vertex.name), dot(vertex.state));
  const made = make("button", `card ${vertex.uid === selected ? "selected" : ""}`, head);
  made.type = "button";
  made.title = `${vertex.name}\nuid ${vertex.uid}`;
  made.dataset.uid = vertex.uid;
  made.append(make("div", "uid", vertex.uid, make("span", "", `parallelism ${vertex.parallelism}`)));
  if (times) {
    const { fill, ink } = mixed(times);
    head.style.background = fill;
    head.style.color = ink;
    made.append(
      timeBar(metrics),
      make("div", "pair", `busy ${percent(most(vertex.uid, "busyTimeMsPerSecond"))}`,
        make("span", "", `back-pressured ${percent(most(vertex.uid, "backPressuredTimeMsPerSecond"))}`)),
      make("div", "pair", `in ${short(metrics.numRecordsInPerSecond)}/s`,
        make("span", "", `out ${short(metrics.numRecordsOutPerSecond)}/s`)));
  } else {
    made.append(make("div", "uid", "no numbers yet"));
  }
  made.addEventListener("click", () => select(vertex.uid));
  return made;
}

function select(uid) {
  selected = selected === uid ? null : uid;
  for (const each of document.querySelectorAll(".card")) each.classList.toggle("selected", each.dataset.uid === selected);
  document.getElementById("operator").replaceChildren(...operator());
}

/** The subtasks of the selected operator, and the metrics of its functions. */
function operator() {
  const vertex = job.vertices.find((each) => each.uid === selected);
  if (!vertex) return [];
  const found = job.operators[selected], states = Object.entries(vertex.states).map(([s, n]) => `${n} ${s}`).join(", ");
  const parts = [make("h3", "", vertex.name, make("small", "", ` ${vertex.uid}: ${states}, attempt ${vertex.attempt}`))];
  if (!found) return [...parts, note("There are no numbers before its first checkpoint.")];
  parts.push(table(
    ["#subtask", "busy, back-pressured, idle", "#busy", "#back-pressured", "#records in/s", "#out/s", "#bytes in/s",
      "#out/s", "#records in", "#out", "input watermark", "output watermark", "#buffers used", "#start delay",
      "#alignment", "#sync", "#async", "#state", "#rows of state"],
    found.subtasks.map((each) => [
      String(each.index), timeBar(each), percent(each.busyTimeMsPerSecond ?? 0),
      percent(each.backPressuredTimeMsPerSecond ?? 0), short(each.numRecordsInPerSecond),
      short(each.numRecordsOutPerSecond), bytes(each.numBytesInPerSecond), bytes(each.numBytesOutPerSecond),
      number(each.numRecordsIn), number(each.numRecordsOut), time(each.currentInputWatermark),
      time(each.currentOutputWatermark), each.inPoolUsage === undefined ? "–" : percent(each.inPoolUsage * 1000),
      millis(nanos(each.checkpointStartDelayNanos)), millis(nanos(each.checkpointAlignmentTime)),
      millis(each.checkpointSyncDuration), millis(each.checkpointAsyncDuration), bytes(each.state_bytes),
      number(each.rows),
    ])));
  const own = Object.entries(found.user_metrics);
  if (own.length) parts.push(table(["metric", "#value"], own.map(([name, value]) => [name, number(value)])));
  return parts;
}

const nanos = (value) => (value === undefined ? undefined : value / 1e6);

function operators() {
  return [table(
    ["operator", "state", "#subtasks", "busy, back-pressured, idle", "#busy", "#back-pressured", "#records in/s",
      "#out/s", "#bytes in/s", "#out/s", "#late", "#state", "#rows of state", "#attempt"],
    job.vertices.map((vertex) => {
      const metrics = job.metrics[vertex.uid] ?? {}, stored = job.operators[vertex.uid], times = timesOf(metrics);
      const states = STATES.filter((s) => vertex.states[s]).map((s) => `${vertex.states[s]} ${s}`).join(", ");
      const state = dot(vertex.state);
      state.title = `${states} since ${time(vertex.since_ms)}`;
      return {
        cells: [
          make("span", "", make("b", "", vertex.name), make("small", "", ` ${vertex.uid}`)), state,
          String(vertex.parallelism), timeBar(metrics), times ? percent(times.busy) : "–",
          times ? percent(times.backPressured) : "–", short(metrics.numRecordsInPerSecond),
          short(metrics.numRecordsOutPerSecond), bytes(metrics.numBytesInPerSecond),
          bytes(metrics.numBytesOutPerSecond), number(metrics.numLateRecordsDropped), bytes(stored?.state_bytes),
          number(stored?.rows), String(vertex.attempt),
        ],
        className: "link",
        click: () => {
          selected = null;
          select(vertex.uid);
          document.getElementById("operator").scrollIntoView({ block: "nearest" });
        },
      };
    }))];
}

function eventTime() {
  const times = Object.entries(job.event_times);
  if (!times.some(([, each]) => each.output !== null)) return [note("No operator has event time yet.")];
  return [table(
    ["operator", "event time", "#behind the clock", "waits for", "watermarks of its inputs"],
    times.map(([uid, each]) => {
      const inputs = Object.entries(each.inputs), lag = job.metrics[uid]?.watermarkLag;
      const one = inputs.length > 1 ? "held" : "";  // with a single input there is no choice
      const sent = inputs.map(([before, watermark]) =>
        make("span", holds(before, each.held_by) ? one : "", `${before}: ${watermark === null ? "none" : time(watermark)}`));
      return [make("b", "", uid), time(each.output), lag === undefined ? "–" : duration(lag),
        each.held_by === null ? "–" : make("span", one, each.held_by), make("span", "lines", ...sent)];
    }))];
}

/** Whether an input is, or waits for, the operator that holds event time back. */
const holds = (before, held) => before === held || job.event_times[before]?.held_by === held;

function checkpoints() {
  const { counts, summary, history } = job.checkpoints;
  const inOrder = history.toReversed(), latest = inOrder.find((each) => each.status === "COMPLETED");
  const failed = inOrder.find((each) => each.status === "FAILED"), parts = [];
  const facts = [["completed", number(counts.completed)], ["failed", number(counts.failed)],
    ["restored", number(counts.restored)]];
  if (latest) facts.push(["latest completed", `${latest.checkpoint_id} at ${time(latest.trigger_ms)}`]);
  if (failed) facts.push(["latest failed", `${failed.checkpoint_id} at ${time(failed.trigger_ms)}: ${failed.reason}`]);
  const list = make("dl", "facts");
  list.append(...facts.map(([name, value]) => make("div", "", make("dt", "", name), make("dd", "", value))));
  parts.push(list);
  if (Object.keys(summary).length) {
    const kinds = { duration_ms: ["duration", millis], state_bytes: ["state", bytes],
      start_delay_ms: ["start delay", millis], alignment_ms: ["alignment", millis] };
    parts.push(table(["of those completed", "#last", "#least", "#p50", "#p99", "#most"],
      Object.entries(summary).map(([name, s]) => {
        const [title, shown] = kinds[name];
        return [title, ...[s.last, s.minimum, s.p50, s.p99, s.maximum].map(shown)];
      })));
  }
  if (!inOrder.length) return [...parts, note("No checkpoint has ended yet.")];
  const longest = Math.max(...inOrder.map((each) => each.phases?.total ?? 0));
  const legend = make("div", "legend", ...PHASES.map((name) => make("span", "", make("i", `phase-${name}`), name)));
  parts.push(legend, table(
    ["#id", "kind", "status", "triggered", "#duration", "phases", "#to the end of the commit", "#state", "#growth",
      "#start delay", "#alignment", "#acknowledged"],
    inOrder.map((each) => ({
      cells: [
        String(each.checkpoint_id), each.kind,
        make("span", "", dot(each.status), each.reason ? make("small", "reason", ` ${each.reason}`) : ""),
        time(each.trigger_ms), millis(each.duration_ms), phases(each.phases, longest), millis(each.phases?.total),
        bytes(each.state_bytes), each.growth === null ? "–" : `${each.growth < 0 ? "" : "+"}${bytes(each.growth)}`,
        millis(each.start_delay_ms), millis(each.alignment_ms), `${each.acknowledged}/${each.tasks}`,
      ],
      className: each.status === "FAILED" ? "failed" : "",
    }))));
  return parts;
}

function phases(found, longest) {
  if (!found) return "–";
  const said = Object.entries(found).map(([name, value]) => `${name} ${millis(value)}`).join("\n");
  return bar(PHASES.map((name) => [`phase-${name}`, found[name]]), said, longest);
}

function failures() {
  if (!job.failures.length) return [note("The last run has had none.")];
  return [table(["at", "operator", "#subtask", "#region", "#attempt", "error"],
    job.failures.toReversed().map((each) => [time(each.at_ms), each.operator ?? "–", number(each.subtask),
      number(each.region), String(each.attempt),
      make("span", "error", make("b", "", each.error), `: ${each.message}`)]))];
}

function runs() {
  return [table(["began", "status", "for", "#restarts", "#last checkpoint", "error", "owner"],
    [job.run, ...job.earlier.toReversed()].map((run) => [
      time(run.began_ms), dot(run === job.run && job.killed ? "KILLED" : run.status),
      duration(run.at_ms - run.began_ms), String(run.restarts), number(run.checkpoint_id), run.error || "–", run.owner,
    ]))];
}

function facts() {
  const { run, job_metrics: numbers } = job, ended = job.killed || !["RUNNING", "RESTARTING", "CREATED"].includes(run.status);
  return [
    ["started", time(run.began_ms)], [ended ? "ran for" : "running for", duration((ended ? run.at_ms : job.read_at_ms) - run.began_ms)],
    ["restarts", number(run.restarts)], ["last checkpoint", number(job.checkpoint?.checkpoint_id)],
    ["state", bytes(job.checkpoint?.state_bytes)], ["source to commit, p50", millis(numbers["sourceToCommitLatency.p50"])],
    ["run", run.owner], ["directory", job.directory],
  ].map(([name, value]) => make("div", "", make("dt", "", name), make("dd", "", value)));
}

// --- what is new ----------------------------------------------------------------------------------------------------------

/** Draws a part of the page again if what it shows has changed, so that nothing moves under the reader's hands. */
function show(id, data, build) {
  const text = JSON.stringify(data);
  if (SHOWN[id] === text) return;
  SHOWN[id] = text;
  const place = document.querySelector(`#${id}`), inside = place.tagName === "SECTION" ? place.lastElementChild : place;
  inside.replaceChildren(...build());
}

function drawGraph() {
  draw(document.getElementById("canvas"), job.vertices, card);
}

function render() {
  const { read_at_ms: now, ...rest } = job, name = decodeURIComponent(job.directory.split("/").pop());
  document.title = `${name}: ${job.killed ? "KILLED" : job.run.status}`;
  document.getElementById("job").textContent = name;
  const status = document.getElementById("status"), said = job.killed ? "KILLED" : job.run.status;
  status.textContent = said;
  status.className = `badge ${said.toLowerCase()}`;
  document.getElementById("measured").textContent = job.checkpoint
    ? `Numbers of checkpoint ${job.checkpoint.checkpoint_id}, triggered ${duration(now - job.checkpoint.timestamp_ms)} ago: ` +
      "they cover the time since the one before it. Shares of time are those of the subtask with most. " +
      `States are as of ${duration(now - job.run.at_ms)} ago.`
    : "Operators have numbers as soon as the first checkpoint is complete.";
  show("facts", [job.run, job.checkpoint, job.killed, Math.floor(now / 1000)], facts);
  const text = JSON.stringify([job.vertices, job.metrics, job.operators]);
  if (SHOWN.canvas !== text) {
    SHOWN.canvas = text;
    drawGraph();
    document.getElementById("operator").replaceChildren(...operator());
  }
  show("operators", [rest.vertices, rest.metrics, rest.operators], operators);
  show("event-time", [rest.event_times, rest.metrics], eventTime);
  show("checkpoints", rest.checkpoints, checkpoints);
  show("failures", rest.failures, failures);
  show("runs", [rest.run, rest.earlier, rest.killed], runs);
}

async function look() {
  const problem = document.getElementById("problem"), fresh = document.getElementById("fresh");
  try {
    const response = await fetch(`job.json${location.search}`, { cache: "no-store" });
    const found = await response.json();
    if (found.error) throw new Error(found.error);
    job = found;
    render();
    problem.hidden = true;
    fresh.textContent = `read at ${time(job.read_at_ms).slice(11)}`;
  } catch (error) {
    problem.hidden = false;
    problem.textContent = error instanceof TypeError ? "flinkpy job ui does not answer any more." : error.message;
  }
  setTimeout(look, EVERY_MS);
}

window.addEventListener("resize", () => job && drawGraph());
look();
